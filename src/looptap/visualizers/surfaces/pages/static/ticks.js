// Numbers at ticks, for reading: the same arithmetic as data/ticks.py, and the tests compare them.

const SUFFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

const tickForm = (values) => {
  const largest = Math.max(0, ...values.map(Math.abs));
  let unit = 1, suffix = "";
  if (largest && (largest < 1e-4 || largest >= 1e15)) {
    const power = Math.floor(Math.log10(largest) + 1e-12);
    [unit, suffix] = [10 ** power, `e${power}`];
  } else if (largest >= 1e4) [unit, suffix] = SUFFIXES.find(([unit]) => largest >= unit);
  const ordered = [...values].sort((a, b) => a - b);
  const steps = ordered.slice(1).map((value, i) => value - ordered[i]).filter((step) => step > 0);
  const step = steps.length ? Math.min(...steps) : largest;
  let decimals = 0;
  const rough = (value) => Math.abs(+(value / unit).toFixed(decimals) - value / unit) > (0.01 * step) / unit;
  while (decimals < 12 && values.some(rough)) decimals += 1;
  return [unit, suffix, decimals];
};

const tickText = (value, [unit, suffix, decimals]) => {
  const text = (value / unit).toFixed(decimals);
  return +text === 0 ? "0" : text + suffix;
};

// Texts for the numbers at the ticks of an axis, null for those without; on a logarithmic one each stands alone.
const tickLabels = (values, log = false) => {
  const form = log ? null : tickForm(values.filter((value) => value !== null));
  return values.map((value) => (value === null ? "" : tickText(value, form ?? tickForm([value]))));
};
