// Makes deliberate mistakes, one at a time, and requires that a test turns red for each.
//
//     node tests/golden/mutations.mjs [NAME...]
//
// Works on a copy of the tracked files below target/mutations, so the working tree stays as it is;
// builds there share one target folder. Takes about a minute per mistake after the first build.

import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
const copy = join(root, 'target/mutations/tree');
const kernels = 'crates/shaders/src/kernels';

const LAYERS = ['golden', 'every_layer_of_every_fixture'];
const ANSWERS = ['golden', 'tiny_geo_answers'];
const CONTINUATION = ['invariants', 'continuing_a_session_equals_a_cold_run'];
const CHUNKS = ['invariants', 'chunk_sizes_agree'];
const KERNELS = ['kernels', 'every_kernel_matches_its_reference'];
const PROCESSOR = ['golden', 'every_fixture_on_the_cpu'];
const FAST_KERNELS = ['cpu', 'every_fast_kernel_matches_its_reference'];

/** The same mistake in a kernel and in its reference: only an independent answer can tell. */
const both = (kernel, wgsl, reference) => [
  ...wgsl.map(([from, to]) => [`${kernels}/${kernel}/${kernel}.wgsl`, from, to]),
  ...reference.map(([from, to]) => [`${kernels}/${kernel}/reference.rs`, from, to]),
];

/** Name, edits (file, text, replacement), and the engine test that must fail. */
const MUTATIONS = [
  ['adjacent-pair RoPE', [
    ['crates/shaders/src/common/norm_rope.wgsl', 'let pair = i % n_pairs;', 'let pair = i / 2u;'],
    ['crates/shaders/src/common/norm_rope.wgsl', 'if (i < n_pairs) {', 'if (i % 2u == 0u) {'],
    ['crates/shaders/src/common/norm_rope.wgsl', 'normed(head, i + n_pairs, is_key, scale) * s', 'normed(head, i + 1u, is_key, scale) * s'],
    ['crates/shaders/src/common/norm_rope.wgsl', 'normed(head, pair, is_key, scale) * s', 'normed(head, i - 1u, is_key, scale) * s'],
    [`${kernels}/qkv.rs`, '(normed(i), normed(n_pairs + i))', '(normed(2 * i), normed(2 * i + 1))'],
    [`${kernels}/qkv.rs`, 'out[i] = a * cos', 'out[2 * i] = a * cos'],
    [`${kernels}/qkv.rs`, 'out[n_pairs + i] = a * sin', 'out[2 * i + 1] = a * sin'],
  ], LAYERS],
  ['no QK-norm', [
    [`${kernels}/qkv_rope_append/qkv_rope_append.wgsl`, 'let scale = 1.0 / sqrt(total / f32(params.head_dim) + params.eps);', 'let scale = select(1.0, 0.0, total < 0.0);'],
    [`${kernels}/attention_decode/attention_decode.wgsl`, 'return sqrt(total / f32(params.head_dim) + params.eps);', 'return select(1.0, 0.0, total < 0.0);'],
    [`${kernels}/qkv.rs`, 'let scale = 1.0 / (mean + f64::from(eps)).sqrt();', 'let scale = if mean < f64::from(-eps) { 0.0 } else { 1.0 };'],
  ], LAYERS],
  ['+1 on norms', both('rms_norm', [
    ['* scale * weight[i]', '* scale * (weight[i] + 1.0)'],
  ], [
    ['scale * f64::from(weight[i])', 'scale * (f64::from(weight[i]) + 1.0)'],
  ]), LAYERS],
  ['wrong value-head order', ['delta_chunk', 'delta_net'].flatMap((kernel) => both(kernel, [
    ['head % params.key_heads * ', 'head / (params.value_heads / params.key_heads) * '],
  ], [
    ['let key_head = head % key_heads;', 'let key_head = head / (value_heads / key_heads);'],
  ])), LAYERS],
  ['conv state stored after activation', both('delta_conv', [
    ['ring[slot(p + t, channel)] = input(t, channel);', 'ring[slot(p + t, channel)] = input(t, channel) * sigmoid(input(t, channel));'],
  ], [
    ['ring[row * channels..(row + 1) * channels].copy_from_slice(input(t));', 'for (s, &u) in ring[row * channels..(row + 1) * channels].iter_mut().zip(input(t)) {\n            *s = silu(f64::from(u)) as f32;\n        }'],
  ]), CONTINUATION],
  ['positions restart at 0 on continuation', [
    ['crates/engine/src/session.rs', 'State { position: self.ledger.len() as u32,', 'State { position: 0,'],
  ], CONTINUATION],
  ['gate without sigmoid', both('attention', [
    ['vec4f(sigmoid(g.x), sigmoid(g.y), sigmoid(g.z), sigmoid(g.w))', 'g'],
  ], [
    ['sigmoid(qkv[gates + i].into())', 'f64::from(qkv[gates + i])'],
  ]), LAYERS],
  ['scale of the neighbouring group', [
    // Eight at a time, and sixteen.
    ['crates/shaders/src/common/unpack_q1_0.wgsl', 'row_scale(row, k / 128u)', 'row_scale(row, (k / 128u) ^ 1u)'],
    ['crates/shaders/src/common/unpack_q1_0.wgsl', 'row_scale(row, k / 128u)', 'row_scale(row, (k / 128u) ^ 1u)'],
    ['crates/shaders/src/weights.rs', 'chunks_exact_mut(128).zip(bytes.chunks_exact(16)).zip(halves)', 'chunks_exact_mut(128).zip(bytes.chunks_exact(16)).zip(halves.chunks(2).flat_map(|pair| pair.iter().rev()))'],
  ], LAYERS],
  ['bit order reversed', [
    // Eight at a time, and sixteen.
    ['crates/shaders/src/common/unpack_q1_0.wgsl', 'vec4u(1u, 2u, 4u, 8u)', 'vec4u(128u, 64u, 32u, 16u)'],
    ['crates/shaders/src/common/unpack_q1_0.wgsl', 'vec4u(16u, 32u, 64u, 128u)', 'vec4u(8u, 4u, 2u, 1u)'],
    ['crates/shaders/src/common/unpack_q1_0.wgsl', 'vec4u(1u, 2u, 4u, 8u)', 'vec4u(128u, 64u, 32u, 16u)'],
    ['crates/shaders/src/common/unpack_q1_0.wgsl', 'vec4u(16u, 32u, 64u, 128u)', 'vec4u(8u, 4u, 2u, 1u)'],
    ['crates/shaders/src/common/unpack_q1_0.wgsl', 'vec4u(256u, 512u, 1024u, 2048u)', 'vec4u(32768u, 16384u, 8192u, 4096u)'],
    ['crates/shaders/src/common/unpack_q1_0.wgsl', 'vec4u(4096u, 8192u, 16384u, 32768u)', 'vec4u(2048u, 1024u, 512u, 256u)'],
    ['crates/shaders/src/weights.rs', 'if (byte >> i) & 1 == 1', 'if (byte >> (7 - i)) & 1 == 1'],
  ], LAYERS],
  ['last K-block dropped in prefill', both('matmul', [
    ['k < params.cols; k += STEP', 'k + 128u < params.cols; k += STEP'],
  ], [
    ['for k in 0..cols {', 'for k in (0..cols).filter(|k| k / 16 * 16 + 128 < cols) {'],
  ]), LAYERS],
  ['last K-block dropped in decode', [
    [`${kernels}/matvec/lanes.wgsl`, 'k < params.cols; k += LANES', 'k + 128u < params.cols; k += LANES'],
    [`${kernels}/matvec/reference.rs`, 'weights.iter().zip(&input).map(', 'weights.iter().zip(&input).take(cols.saturating_sub(128)).map('],
  ], ANSWERS],
  ['a dispatch over 65,535 groups', [
    ['crates/shaders/src/kernel.rs', 'let y = n.div_ceil(max).max(1);', 'let y = 1;'],
  ], KERNELS],
  ['last token of a reused prefix read again', [
    ['crates/engine/src/engine.rs', '            n_read,\n', '            n_read: n_read.saturating_sub(1),\n'],
  ], CONTINUATION],
  ['attention looks one position ahead', both('attention', [
    ['let n_keys = min(state.position + token + 1u', 'let n_keys = min(state.position + token + 2u'],
    ['last_query / params.group + 1u', 'last_query / params.group + 2u'],
  ], [
    ['let n_keys = (position + token + 1)', 'let n_keys = (position + token + 2)'],
  ]), CHUNKS],
  ['weights of a nibble in reverse on the processor', [
    ['crates/shaders/src/cpu/nibbles.rs', '(nibble >> (bits * place))', '(nibble >> (4 - bits - bits * place))'],
  ], PROCESSOR],
  ['sums of second digits lost on the processor', [
    ['crates/shaders/src/cpu/nibbles.rs', '= [1.0, 1.0 / BASE, ', '= [1.0, 0.0, '],
  ], PROCESSOR],
  ['the last tile laid out as a full one', [
    ['crates/shaders/src/cpu/tiles.rs', '(start * units_per_row + row % ROWS, ROWS.min(n_rows - start))', '(start * units_per_row + row % ROWS, ROWS)'],
  ], FAST_KERNELS],
];

/** Makes the edits and returns what undoes them. */
function mutate(edits) {
  const originals = new Map();
  for (const [file, from, to] of edits) {
    const path = join(copy, file);
    const text = readFileSync(path, 'utf8');
    if (!text.includes(from)) throw new Error(`${file} no longer contains: ${from}`);
    if (!originals.has(path)) originals.set(path, text);
    writeFileSync(path, text.replace(from, () => to));
  }
  return () => originals.forEach((text, path) => writeFileSync(path, text));
}

function runTest([binary, name]) {
  const args = ['test', '-q', '-p', 'signbit-engine', '--test', binary, '--', '--exact', name];
  const env = { ...process.env, CARGO_TARGET_DIR: join(root, 'target/mutations/build') };
  return spawnSync('cargo', args, { cwd: copy, env, encoding: 'utf8' });
}

rmSync(copy, { recursive: true, force: true });
const files = execFileSync('git', ['ls-files', '-z', 'crates', 'models', 'tests/golden', 'Cargo.toml', 'Cargo.lock', 'clippy.toml'], { cwd: root, encoding: 'utf8', maxBuffer: 1 << 26 });
for (const file of files.split('\0').filter((f) => f && existsSync(join(root, f)))) {
  mkdirSync(dirname(join(copy, file)), { recursive: true });
  cpSync(join(root, file), join(copy, file));
}

const wanted = process.argv.slice(2);
const chosen = MUTATIONS.filter(([name]) => wanted.length === 0 || wanted.includes(name));
for (const test of new Set(chosen.map(([, , test]) => test))) {
  const clean = runTest(test);
  if (clean.status !== 0) throw new Error(`${test.join(' ')} fails without any mistake:\n${clean.stdout}${clean.stderr}`);
}
let missed = 0;
for (const [name, edits, test] of chosen) {
  const undo = mutate(edits);
  const result = runTest(test);
  undo();
  const built = /running \d+ test/.test(result.stdout);
  const red = result.status !== 0 && built;
  if (!red) missed += 1;
  const line = `${result.stdout}${result.stderr}`.split('\n').find((l) => /differ|best token|is right|left:/.test(l)) ?? '';
  console.log(`${red ? 'red   ' : built ? 'MISSED' : 'BROKEN'}  ${name}: ${test.join('::')}  ${line.trim().slice(0, 140)}`);
}
console.log(`${chosen.length - missed} passed, ${missed} failed`);
process.exit(missed === 0 ? 0 : 1);
