// The words of `settings`; `Settings` in sampling.rs is the Rust side.
const INVERSE_TEMPERATURE = 0u;
const IS_RANDOM = 1u;
const TOP_K = 2u;
const TOP_N_SIGMA = 3u;
const MIN_P_REACH = 4u;
const TOP_P = 5u;
const REPETITION = 6u;
const INVERSE_REPETITION = 7u;
const PRESENCE = 8u;
const FREQUENCY = 9u;
const HAS_PENALTIES = 10u;
const HAS_BIAS = 11u;
const HAS_ALLOWED = 12u;
const SEED = 13u;
const FIRST_GENERATED = 15u;
const DRY_LAST_N = 16u;
const HAS_DRY = 17u;
const DRY_PENALTIES = 32u;
const SETS = 96u;

// The longest repetition that DRY tells from longer ones.
const MAX_MATCH = 63u;

// Bit of a count: the token is in the prompt.
const IN_PROMPT = 0x80000000u;

// Bounds of scores that are no scores.
const EXCLUDED = -3.0e38;
const UNBOUNDED = 3.0e38;

fn setting(word: u32) -> f32 {
    return bitcast<f32>(settings[word]);
}

// Whether the set of ids that starts at a word of `settings` has the id.
fn has_id(start: u32, id: u32) -> bool {
    return ((settings[start + id / 32u] >> (id % 32u)) & 1u) == 1u;
}
