// Pixels as Pillow resamples them, so that a browser's model sees what Python's sees.
//
// Separable, antialiased, in fixed point: along the width first, rounded to bytes, then along the
// height. Weights are normalised in double precision and then rounded to 22 fractional bits.

const ONE = 2 ** 22;

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

const cubic = (x) => {
  // Keys' kernel with a = -1/2.
  const t = Math.abs(x);
  if (t < 1) return (1.5 * t - 2.5) * t * t + 1;
  return t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
};

const FILTERS = {
  bilinear: { reach: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: { reach: 2, weight: cubic },
  lanczos: { reach: 3, weight: (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0) },
};

/** Taps of every output pixel of one axis that reads [from, to) of `length` input pixels. */
function taps(length, from, to, size, filter) {
  const step = Math.fround(to - from) / size;
  const stretch = Math.max(step, 1);
  const shrink = 1 / stretch;
  const reach = filter.reach * stretch;
  return Array.from({ length: size }, (_, i) => {
    const centre = from + (i + 0.5) * step;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const last = Math.min(length, Math.trunc(centre + reach + 0.5));
    const weights = [];
    let sum = 0;
    for (let j = first; j < last; j += 1) {
      const weight = filter.weight((j - centre + 0.5) * shrink);
      weights.push(weight);
      sum += weight;
    }
    const fixed = weights.map((w) => {
      const share = (w / sum) * ONE;
      return Math.trunc(share < 0 ? share - 0.5 : share + 0.5);
    });
    return { first, fixed };
  });
}

const byte = (sum) => Math.min(255, Math.max(0, Math.floor((sum + ONE / 2) / ONE)));

/**
 * @param {{width: number, height: number, data: Uint8Array|Uint8ClampedArray}} picture
 *     [height, width, 3] bytes.
 * @param {number} width  of the result, in pixels.
 * @param {number} height of the result, in pixels.
 * @param {string} interpolation bilinear, bicubic or lanczos.
 * @param {number[]} box left, top, right, bottom of what is read, in pixels; all by default.
 */
export function resize(picture, width, height, interpolation, box) {
  const filter = FILTERS[interpolation];
  if (!filter) throw new Error(`no filter ${interpolation}: use ${Object.keys(FILTERS).join(", ")}`);
  // Pillow keeps the corners of a box in single precision.
  const whole = [0, 0, picture.width, picture.height];
  const [left, top, right, bottom] = (box ?? whole).map(Math.fround);
  let { data } = picture;
  let rowWidth = picture.width;
  if (left !== 0 || right !== picture.width || width !== picture.width) {
    const across = taps(picture.width, left, right, width, filter);
    const out = new Uint8Array(picture.height * width * 3);
    for (let y = 0; y < picture.height; y += 1) {
      across.forEach(({ first, fixed }, x) => {
        for (let c = 0; c < 3; c += 1) {
          let sum = 0;
          for (let k = 0; k < fixed.length; k += 1) {
            sum += data[(y * rowWidth + first + k) * 3 + c] * fixed[k];
          }
          out[(y * width + x) * 3 + c] = byte(sum);
        }
      });
    }
    data = out;
    rowWidth = width;
  }
  if (top !== 0 || bottom !== picture.height || height !== picture.height) {
    const down = taps(picture.height, top, bottom, height, filter);
    const out = new Uint8Array(height * rowWidth * 3);
    down.forEach(({ first, fixed }, y) => {
      for (let x = 0; x < rowWidth * 3; x += 1) {
        let sum = 0;
        for (let k = 0; k < fixed.length; k += 1) {
          sum += data[(first + k) * rowWidth * 3 + x] * fixed[k];
        }
        out[y * rowWidth * 3 + x] = byte(sum);
      }
    });
    data = out;
  }
  return { width, height, data };
}
