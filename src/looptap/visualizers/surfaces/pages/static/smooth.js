// Smoothing and outliers of a line: the same arithmetic as data/smoothing.py, and the tests compare them.

// The moving average of a column that grows: only what is new is looked at.
class Smoother {
  constructor(weight) {
    this.weight = weight;
    this.out = new Column();
    this.generation = -1;
  }
  of(column) {
    if (this.generation !== column.generation || column.count - this.count > column.view.length) {
      this.generation = column.generation;
      this.out.clear(column.most);
      this.average = this.power = 0;
      this.count = column.count - column.view.length;
      this.power = 1;
    }
    const fresh = column.view.subarray(column.view.length - (column.count - this.count));
    if (fresh.length) {
      const found = new Float64Array(fresh.length), { weight } = this;
      for (let i = 0; i < fresh.length; i++) {
        const value = fresh[i];
        if (value - value !== 0) {
          found[i] = NaN;
          continue;
        }
        this.average = weight * this.average + (1 - weight) * value;
        this.power *= weight;
        found[i] = this.average / (1 - this.power);
      }
      this.out.append(found);
      this.count = column.count;
    }
    return this.out.view;
  }
}

const quantile = (sorted, share) => {
  const at = share * (sorted.length - 1), i = Math.floor(at);
  return sorted[i] + (at - i) * ((sorted[i + 1] ?? sorted[i]) - sorted[i]);
};

// The smallest and the largest number that is no outlier; null without numbers.
const inliers = (numbers) => {
  const known = Float64Array.from(numbers).filter((value) => value - value === 0).sort();
  if (!known.length) return null;
  const low = quantile(known, OUTLIER_QUANTILE_SHARE), high = quantile(known, 1 - OUTLIER_QUANTILE_SHARE);
  const reach = OUTLIER_REACH_FACTOR * (high - low);
  return [known[lower(known, low - reach)], known[upper(known, high + reach) - 1]];
};
