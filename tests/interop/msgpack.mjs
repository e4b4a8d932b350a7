// The part of msgpack that the protocol uses: integers, booleans, text, bytes and arrays. Everything else is malformed,
// floats and nil included, which is why no library decodes it here: those take a float of 1 for an integer.

export class Refused extends Error {
  constructor (reason, detail = '') {
    super(`${reason}: ${detail}`)
    this.reason = reason
  }
}

const MAX_ITEMS = 64
const MAX_DEPTH = 8 // no message nests deeper than 3

const malformed = detail => new Refused('malformed', detail)

/** The value that all of `data` encodes. Numbers above 2^53 - 1 are malformed, as on the wire. */
export function unpack (data, limit, items = MAX_ITEMS) {
  if (data.length > limit) throw new Refused('oversize', `${data.length} bytes where ${limit} are allowed`)
  const reader = new Reader(data, items)
  const value = reader.value(0)
  if (reader.at !== data.length) throw malformed('bytes after the end')
  return value
}

class Reader {
  constructor (data, items) {
    this.data = data
    this.items = items
    this.at = 0
  }

  bytes (size) {
    if (this.at + size > this.data.length) throw malformed('cut short')
    this.at += size
    return this.data.subarray(this.at - size, this.at)
  }

  uint (size) {
    const value = this.bytes(size).reduce((sum, byte) => sum * 256 + byte, 0)
    if (!Number.isSafeInteger(value)) throw malformed('an integer above 2^53 - 1')
    return value
  }

  text (size) {
    const raw = this.bytes(size)
    if (raw.some(byte => byte < 0x20 || byte > 0x7e)) throw malformed('text that is not printable ASCII')
    return raw.toString('latin1')
  }

  array (count, depth) {
    if (count > this.items || depth >= MAX_DEPTH) throw malformed('an array that is too long or too deep')
    return Array.from({ length: count }, () => this.value(depth + 1))
  }

  value (depth) {
    const head = this.uint(1)
    if (head < 0x80) return head
    if (head >= 0x90 && head < 0xa0) return this.array(head & 0x0f, depth)
    if (head >= 0xa0 && head < 0xc0) return this.text(head & 0x1f)
    switch (head) {
      case 0xc2: return false
      case 0xc3: return true
      case 0xc4: case 0xc5: case 0xc6: return this.bytes(this.uint(1 << (head - 0xc4)))
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return this.uint(1 << (head - 0xcc))
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return this.signed(1 << (head - 0xd0))
      case 0xd9: case 0xda: case 0xdb: return this.text(this.uint(1 << (head - 0xd9)))
      case 0xdc: case 0xdd: return this.array(this.uint(2 << (head - 0xdc)), depth)
      default: throw malformed(`a value of type ${head.toString(16)}`)
    }
  }

  signed (size) {
    if (this.data[this.at] >= 0x80) throw malformed('a negative integer')
    return this.uint(size)
  }
}

/** The shortest encoding of an integer, boolean, text, Buffer, or array of these. */
export function pack (value) {
  if (Array.isArray(value)) return Buffer.concat([head(value.length, 0x90, 16, [0xdc, 0xdd], 2), ...value.map(pack)])
  if (typeof value === 'boolean') return Buffer.of(value ? 0xc3 : 0xc2)
  if (typeof value === 'number') return head(value, 0, 128, [0xcc, 0xcd, 0xce, 0xcf], 1)
  if (typeof value === 'string') {
    return Buffer.concat([head(value.length, 0xa0, 32, [0xd9, 0xda, 0xdb], 1), Buffer.from(value)])
  }
  return Buffer.concat([head(value.length, 0, 0, [0xc4, 0xc5, 0xc6], 1), value])
}

function head (number, base, short, codes, smallest) {
  if (number < short) return Buffer.of(base + number)
  const step = codes.findIndex((_, index) => number < 2 ** (8 * (smallest << index)))
  const size = smallest << step
  const digits = Array.from({ length: size }, (_, index) => Math.floor(number / 2 ** (8 * (size - 1 - index))) % 256)
  return Buffer.of(codes[step], ...digits)
}
