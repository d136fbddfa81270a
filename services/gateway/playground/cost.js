// What an answer cost against the large model alone, by the two formulas of R2R (arXiv 2505.21600, section 4.1).

/** Share saved by the published formula: each token costs the parameters of the model that wrote it. */
export function savedPublished(counts, parameters) {
  const tokens = counts.reduce((sum, count) => sum + count, 0);
  return 1 - weighted(counts, parameters) / (tokens * parameters.at(-1));
}

/**
 * Share saved where every position that a model computed counts: prompts, catch-up and dropped proposals. The large
 * model alone computes prompt and answer once. The router's own work is left out: its size is not told.
 */
export function savedFull(computed, parameters, usage) {
  const alone = (usage.prompt_tokens + usage.completion_tokens - 1) * parameters.at(-1);
  return 1 - weighted(computed, parameters) / alone;
}

function weighted(counts, parameters) {
  return counts.reduce((sum, count, tier) => sum + count * (parameters[tier] ?? 0), 0);
}
