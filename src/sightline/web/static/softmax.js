// Softmax of scores at a temperature. A score of -Infinity gets the weight 0.
export function softmax(scores, temperature = 1) {
  const highest = Math.max(...scores);
  if (highest === -Infinity) return scores.map(() => 0);
  const powers = scores.map((score) => Math.exp((score - highest) / temperature));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}
