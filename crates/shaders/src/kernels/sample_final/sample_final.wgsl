// Cuts exactly where top-k and top-p cut, takes the token with the largest perturbed score of all that are kept, and
// moves the session on, or ends it when the logits are not usable.
// One workgroup.

struct Params {
    n_valid: u32,
    vocab: u32,
    share: u32,
    shares: u32,
    winners: u32,
    undecided: u32,
    n_generated: u32,
    counts: u32,
    ledger: u32,
    context: u32,
    logprob_cols: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> state: State;
@group(0) @binding(2) var<storage, read> settings: array<u32>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> stats: array<f32>;
@group(0) @binding(5) var<storage, read> tally: array<u32>;
@group(0) @binding(6) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(7) var<storage, read_write> history: array<u32>;
@group(0) @binding(8) var<storage, read_write> logprobs: array<f32>;

var<workgroup> is_running: u32;
var<workgroup> position: u32;
var<workgroup> whole: Summary;
var<workgroup> bounds: Bounds;
// Number, mass / 2^13 and mass % 2^13 by digit.
var<workgroup> digits: array<atomic<u32>, 768>;
var<workgroup> cut: Cut;
var<workgroup> is_found: u32;
var<workgroup> cut_bin: u32;
var<workgroup> goal: f32;
var<workgroup> best_score: array<f32, 256>;
var<workgroup> best_id: array<u32, 256>;

// The last token that is kept in a bin, in the order of falling scores and rising ids: its inverted key and its id; and
// the number and mass of the tokens before it.
struct Cut {
    rank: u32,
    id: u32,
    n: u32,
    mass: vec2u,
}

fn distance_of(id: u32) -> f32 {
    return whole.top - logits[params.vocab + id];
}

// Small for large scores.
fn rank_of(id: u32) -> u32 {
    return ~order_key(bitcast<u32>(logits[params.vocab + id]));
}

fn n_words() -> u32 {
    return params.shares * (params.share / 32u);
}

// Leaves in `cut` where the tokens of a bin, together with `above`, reach the number `n` or the mass `goal`: eight
// bits of rank and id at a time, from the top.
fn find_cut(lane: u32, bin: u32, n: u32, above: vec2u) {
    if (lane == 0u) {
        cut = Cut(0u, 0u, 0u, above);
        is_found = 0u;
    }
    for (var round = 0u; round < 7u; round += 1u) {
        for (var i = lane; i < 768u; i += 256u) {
            atomicStore(&digits[i], 0u);
        }
        workgroupBarrier();
        let in_rank = round < 4u;
        let shift = select(48u - 8u * round, 24u - 8u * round, in_rank);
        for (var word = lane; word < n_words(); word += 256u) {
            for (var bits = tally[params.undecided + word]; bits != 0u; bits &= bits - 1u) {
                let id = word * 32u + countTrailingZeros(bits);
                let distance = distance_of(id);
                let rank = rank_of(id);
                let number = select(id, rank, in_rank);
                let reached = select(cut.id, cut.rank, in_rank);
                // Two shifts, because one by 32 bits is none.
                let is_same = ((number ^ reached) >> shift) >> 8u == 0u && (in_rank || rank == cut.rank);
                if (is_same && bin_of(distance, whole.scale) == bin) {
                    let at = ((number >> shift) & 255u) * 3u;
                    let weight = mass(distance);
                    atomicAdd(&digits[at], 1u);
                    atomicAdd(&digits[at + 1u], weight >> 13u);
                    atomicAdd(&digits[at + 2u], weight & 8191u);
                }
            }
        }
        workgroupBarrier();
        if (lane == 0u) {
            take_digit(round, shift, n);
        }
        if (workgroupUniformLoad(&is_found) != 0u) {
            break;
        }
    }
}

// For one invocation: adds the digit at which the goal is reached to the cut.
fn take_digit(round: u32, shift: u32, n: u32) {
    var digit = 0u;
    for (; digit < 255u; digit += 1u) {
        let through = mass_sum(cut.mass, digit_mass(digit));
        let number = cut.n + atomicLoad(&digits[digit * 3u]);
        // At least one token is kept, even for the goal 0.
        if (number > cut.n && (number >= n || mass_share(through) >= goal)) {
            break;
        }
        cut.n = number;
        cut.mass = through;
    }
    if (round < 4u) {
        cut.rank |= digit << shift;
    } else {
        cut.id |= digit << shift;
    }
    // A single token needs no more digits.
    if (atomicLoad(&digits[digit * 3u]) == 1u) {
        cut.mass = mass_sum(cut.mass, digit_mass(digit));
        if (round < 4u) {
            cut.rank |= (1u << shift) - 1u;
            cut.id = 0xffffffu;
        } else {
            cut.id |= (1u << shift) - 1u;
        }
        is_found = 1u;
    }
}

fn digit_mass(digit: u32) -> vec2u {
    let low = vec2u(0u, atomicLoad(&digits[digit * 3u + 2u]));
    return mass_sum(vec2u(atomicLoad(&digits[digit * 3u + 1u]), 0u), low);
}

fn is_kept(id: u32) -> bool {
    let bin = bin_of(distance_of(id), whole.scale);
    let rank = rank_of(id);
    return bin < cut_bin || (bin == cut_bin && (rank < cut.rank || (rank == cut.rank && id <= cut.id)));
}

// For one invocation: where top-p cuts, given what top-k keeps.
fn place_cut_of_top_p() {
    let kept = select(bounds.above_k, cut.mass, bounds.k_bin < BINS);
    goal = setting(TOP_P) * mass_share(kept);
    cut_bin = min(reaching(goal), bounds.k_bin);
}

fn mass_above(bin: u32) -> vec2u {
    var sum = vec2u(0u);
    for (var i = 0u; i < bin; i += 1u) {
        sum = mass_sum(sum, bin_mass[i]);
    }
    return sum;
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {
    load_bin(lane);
    workgroupBarrier();
    if (lane == 0u) {
        position = state.position + state.n_tokens;
        whole = summarize(params.shares);
        is_running = u32(state.n_tokens > 0u);
        if (is_running != 0u && whole.is_usable == 0u) {
            refuse();
            is_running = 0u;
        }
        bounds = Bounds(BINS, BINS, BINS, 0u, vec2u(0u));
        if (settings[IS_RANDOM] != 0u && (settings[TOP_K] > 0u || setting(TOP_P) < 1.0)) {
            bounds = find_bounds();
        }
        cut = Cut(0xffffffffu, 0xffffffu, 0u, vec2u(0u));
        cut_bin = bounds.k_bin;
        goal = UNBOUNDED;
    }
    if (workgroupUniformLoad(&is_running) == 0u) {
        return;
    }
    let limits = workgroupUniformLoad(&bounds);
    if (limits.k_bin < BINS) {
        find_cut(lane, limits.k_bin, settings[TOP_K] - limits.n_above_k, limits.above_k);
    }
    if (limits.first < BINS && setting(TOP_P) < 1.0) {
        if (lane == 0u) {
            place_cut_of_top_p();
        }
        let bin = workgroupUniformLoad(&cut_bin);
        find_cut(lane, bin, 0xffffffffu, mass_above(bin));
    }
    workgroupBarrier();

    let noise = noise_at(position);
    var best = EXCLUDED;
    var winner = 0xffffffffu;
    if (lane < params.shares && tally[params.winners + lane] != 0xffffffffu) {
        winner = tally[params.winners + lane];
        best = perturbed(distance_of(winner), winner, noise);
    }
    for (var word = lane; word < n_words(); word += 256u) {
        for (var bits = tally[params.undecided + word]; bits != 0u; bits &= bits - 1u) {
            let id = word * 32u + countTrailingZeros(bits);
            if (!is_kept(id)) {
                continue;
            }
            let value = perturbed(distance_of(id), id, noise);
            if (value > best || (value == best && id < winner)) {
                best = value;
                winner = id;
            }
        }
    }
    best_score[lane] = best;
    best_id[lane] = winner;
    workgroupBarrier();
    if (lane != 0u) {
        return;
    }
    for (var i = 1u; i < 256u; i += 1u) {
        if (best_score[i] > best || (best_score[i] == best && best_id[i] < winner)) {
            best = best_score[i];
            winner = best_id[i];
        }
    }
    let slot = state.step % params.n_generated;
    history[slot] = winner;
    history[params.counts + winner] += 1u;
    if (position < params.context) {
        history[params.ledger + position] = winner;
    }
    logprobs[slot * params.logprob_cols] = logits[winner] - whole.log_sum;
    tokens[0] = winner;
    advance(winner);
}
