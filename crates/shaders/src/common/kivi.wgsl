// The 4-bit KV cache of an attention layer; kivi.rs is its Rust side and says what is where. A
// kernel that includes this has `params.cache` and the buffers `exact`, `codes` and `scales`.

struct Cache {
    num_kv_heads: u32,
    // Elements of a head, a multiple of 32, at most 256.
    head_dim: u32,
    // Quantised rows that there is room for, a multiple of 128.
    capacity: u32,
    // Tokens that there is room for.
    context: u32,
}

const SINK = 8u;
const WINDOW = 128u;
const GROUP = 32u;
const KEYS = 0u;
const VALUES = 1u;

// Invocations of a workgroup: one per row of the window.
const LANES = 128u;

// Quantised rows of a sequence of `len` tokens.
fn quantised_rows(len: u32) -> u32 {
    if (len <= SINK) {
        return 0u;
    }
    return (len - SINK - 1u) / WINDOW * WINDOW;
}

// Whether the token that is appended at `position` finds the residual window full.
fn finds_window_full(position: u32) -> bool {
    return position > SINK && (position - SINK) % WINDOW == 0u;
}

// Slot of an exact row: of the sink, or of the window behind `quantised` rows.
fn exact_slot(position: u32, quantised: u32) -> u32 {
    return select(position - quantised, position, position < SINK);
}

fn exact_index(part: u32, head: u32, slot: u32) -> u32 {
    return ((part * params.cache.num_kv_heads + head) * (SINK + WINDOW) + slot) * params.cache.head_dim;
}

// The word that holds channels c..c+8 of a quantised row, c in the lowest bits.
fn code_index(part: u32, head: u32, row: u32, c: u32) -> u32 {
    let first = (part * params.cache.num_kv_heads + head) * params.cache.capacity;
    return ((first + row) * params.cache.head_dim + c) / 8u;
}

fn key_scale_index(head: u32, row: u32, c: u32) -> u32 {
    return (head * (params.cache.capacity / GROUP) + row / GROUP) * params.cache.head_dim + c;
}

fn value_scale_index(head: u32, row: u32, c: u32) -> u32 {
    let keys = params.cache.num_kv_heads * (params.cache.capacity / GROUP) * params.cache.head_dim;
    return keys + (head * params.cache.capacity + row) * (params.cache.head_dim / GROUP) + c / GROUP;
}
