//! A session as a value: a manifest and chunks of bounded size, the same natively and in a browser.
//!
//! The manifest says what the session is and lists the chunks, each with its digest. Chunks hold the words
//! of the caches, little-endian, by parts: blocks of rows, then states ([`crate::model::kept`]). Of the
//! caches only what is in use is there, and it does not depend on how long a context the model was loaded
//! with. A full block stays the same while the session grows, and a checkpoint's state for ever, so whoever
//! keeps chunks by their digests writes them once, for all snapshots and all sessions that begin alike.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::device::Words;
use crate::engine::{Engine, outdated};
use crate::error::EngineError;
use crate::loader::LoadedModel;
use crate::model::kept::{Kept, count, part};
use crate::session::{Checkpoint, Head, Session, thin_out};
use crate::transcript::Transcript;

/// The version of this format. Another is refused.
pub const FORMAT: u32 = 1;

/// Bytes of a chunk unless the caller asks for less.
pub const CHUNK_BYTES: u32 = 8 << 20;

/// The fewest bytes that a chunk may be limited to: there are not to be too many.
pub const MIN_CHUNK_BYTES: u32 = 4096;

/// The most bytes that a chunk may have.
pub const MAX_CHUNK_BYTES: u32 = 16_000_000;

/// What must be equal for the words of a snapshot to mean the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// The model's digest.
    pub model: String,
    /// How keys and values are kept, by name.
    pub kv_cache: String,
    /// Layers, heads and the constants of the cache.
    pub geometry: String,
    /// How positions are rotated.
    pub rope: String,
    /// Digests of the adapters on top of the weights, in order. This engine has none.
    pub adapters: Vec<String>,
}

/// What computed a snapshot. Another device may round differently, and is not refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputedBy {
    /// `webgpu` or `cpu`.
    pub backend: String,
    /// The adapter's name.
    pub name: String,
    /// On the CPU the precision of activations.
    pub activations: Option<String>,
    /// Positions that the caches held: attention is split among workgroups by them.
    pub context_length: u32,
}

/// A part of a session's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Rows of the caches, the first and the one behind the last.
    Rows([u32; 2]),
    /// The state after so many tokens.
    State(u32),
}

/// A piece of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// The part that it is of.
    pub part: Part,
    /// Bytes of the part before it.
    pub offset: u64,
    /// Its own bytes, a multiple of 4.
    pub bytes: u32,
    /// XXH3 (128 bits) of them in hexadecimal; nothing until they were read once.
    pub digest: Option<String>,
}

/// What a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// See [`FORMAT`].
    pub format: u32,
    /// What the session fits.
    pub fingerprint: Fingerprint,
    /// Where it comes from.
    pub computed_by: ComputedBy,
    /// See [`Head::ids`].
    pub ids: Vec<u32>,
    /// See [`Head::pending`].
    pub pending: Option<u32>,
    /// See [`Head::dropped`].
    pub dropped: Option<[u32; 2]>,
    /// See [`Head::checkpoints`].
    pub checkpoints: Vec<u32>,
    /// See [`Head::turns`].
    pub turns: Transcript,
    /// See [`Head::last_turn`].
    pub last_turn: u32,
    /// The most bytes of a chunk.
    pub chunk_bytes: u32,
    /// All chunks, in order.
    pub chunks: Vec<Chunk>,
    /// XXH3 (128 bits) of the manifest without this field; nothing until all chunks have theirs.
    pub digest: Option<String>,
}

impl Manifest {
    /// The session without its data.
    pub fn head(&self) -> Head {
        let dropped = self.dropped.map_or(0..0, |[start, end]| start..end);
        Head {
            ids: self.ids.clone(),
            pending: self.pending,
            dropped,
            checkpoints: self.checkpoints.clone(),
            turns: self.turns.clone(),
            last_turn: self.last_turn,
        }
    }

    /// The manifest's own digest.
    fn own_digest(&self) -> Result<String, EngineError> {
        let bare = serde_json::to_vec(&Self { digest: None, ..self.clone() });
        bare.map(|bytes| digest(&bytes)).map_err(|error| corrupt(error.to_string()))
    }

    /// Whether the manifest is as it was written, by itself.
    pub fn check(&self) -> Result<(), EngineError> {
        if self.format != FORMAT {
            return Err(mismatch("format", self.format, FORMAT));
        }
        let has_all = self.chunks.iter().all(|chunk| chunk.digest.is_some());
        if !has_all || self.digest.as_ref() != Some(&self.own_digest()?) {
            return Err(corrupt("the manifest is not as it was written"));
        }
        Ok(())
    }

    /// Whether the manifest is as it was written and fits the model; gives the session without its data.
    pub(crate) fn checked(&self, loaded: &LoadedModel) -> Result<Head, EngineError> {
        self.check()?;
        let (theirs, ours) = (&self.fingerprint, fingerprint(loaded));
        let texts = |print: &Fingerprint| {
            let Fingerprint { model, kv_cache, geometry, rope, adapters } = print.clone();
            [model, kv_cache, geometry, rope, adapters.join(" ")]
        };
        let names = ["model", "kv_cache", "geometry", "rope", "adapters"];
        for (name, (theirs, ours)) in names.into_iter().zip(texts(theirs).iter().zip(&texts(&ours))) {
            if theirs != ours {
                return Err(mismatch(name, theirs, ours));
            }
        }
        let (model, head) = (&loaded.model, self.head());
        let len = u32::try_from(head.ids.len()).map_err(|_| corrupt("the ledger is too long"))?;
        let vocab = model.config().vocab_size;
        let is_ascending = |list: &[u32]| list.windows(2).all(|pair| pair[0] < pair[1]);
        let dropped = &head.dropped;
        let is_whole = len > 0
            && head.ids.iter().chain(&head.pending).all(|&id| id < vocab)
            && is_ascending(&head.checkpoints)
            && head.checkpoints.iter().all(|&at| 0 < at && at <= len)
            && dropped.start <= dropped.end
            && dropped.end <= len
            && (dropped.len() as u32).is_multiple_of(model.kept().granule())
            && (dropped.is_empty() || model.kept().round_up(dropped.start) == dropped.start)
            && !head.checkpoints.iter().any(|&at| dropped.start < at && at <= dropped.end);
        if !is_whole {
            return Err(corrupt("ledger and cursors contradict each other"));
        }
        let (prompt_tokens, context_length) = (head.rows(len) as usize, model.context_length() as usize);
        if prompt_tokens > context_length {
            return Err(EngineError::ContextFull { prompt_tokens, context_length });
        }
        let place = |chunk: &Chunk| (chunk.part, chunk.offset, chunk.bytes);
        if !self
            .chunks
            .iter()
            .map(place)
            .eq(chunks(model.kept(), &head, self.chunk_bytes)?.map(|chunk| place(&chunk)))
        {
            return Err(corrupt("its chunks are not those of its ledger"));
        }
        Ok(head)
    }
}

/// Digests of chunks that have been read, as long as they hold.
#[derive(Debug, Default)]
pub struct ChunkDigests(HashMap<(Part, u64, u32), String>);

impl ChunkDigests {
    fn get(&self, chunk: &Chunk) -> Option<&String> {
        self.0.get(&(chunk.part, chunk.offset, chunk.bytes))
    }

    fn learn(&mut self, chunk: &Chunk, digest: String) {
        self.0.insert((chunk.part, chunk.offset, chunk.bytes), digest);
    }

    /// Forgets rows that end behind `rows`, and states behind `len` tokens.
    pub(crate) fn forget_behind(&mut self, rows: u32, len: u32) {
        self.0.retain(|(part, ..), _| match part {
            Part::Rows([_, end]) => *end <= rows,
            Part::State(at) => *at <= len,
        });
    }
}

/// A snapshot on its way into the caches.
#[derive(Debug)]
pub struct Restore {
    /// Number of the generation that its first chunk has ended; a later one ends the restore.
    number: Option<u64>,
    manifest: Manifest,
    head: Head,
    /// Which chunks have come.
    seen: Vec<bool>,
    /// States of the checkpoints that are kept.
    states: BTreeMap<u32, Vec<u32>>,
}

impl Engine {
    /// What a snapshot of the resident session is: chunks that have been read before have their digests.
    ///
    /// # Errors
    /// The session is empty, or matches nothing after a failed step.
    pub fn snapshot(&self, chunk_bytes: u32) -> Result<Manifest, EngineError> {
        let (loaded, session) = (self.loaded()?, self.session()?);
        if session.ledger().is_empty() || !session.is_sound() {
            let reason = "there is nothing to take a snapshot of".to_owned();
            return Err(EngineError::InvalidRequest { reason });
        }
        let head = session.head();
        let mut chunks: Vec<Chunk> = chunks(loaded.model.kept(), head, chunk_bytes)?.collect();
        for chunk in &mut chunks {
            chunk.digest = session.digests.get(chunk).cloned();
        }
        let info = self.device_info();
        Ok(Manifest {
            format: FORMAT,
            fingerprint: fingerprint(loaded),
            computed_by: ComputedBy {
                backend: info.backend.to_owned(),
                name: info.name.clone(),
                activations: info.activations.map(str::to_owned),
                context_length: loaded.model.context_length(),
            },
            ids: head.ids.clone(),
            pending: head.pending,
            dropped: (!head.dropped.is_empty()).then_some([head.dropped.start, head.dropped.end]),
            checkpoints: head.checkpoints.clone(),
            turns: head.turns.clone(),
            last_turn: head.last_turn,
            chunk_bytes,
            chunks,
            digest: None,
        })
    }

    /// Reads a chunk of a snapshot that [`Engine::snapshot`] gave, and enters its digest.
    ///
    /// # Errors
    /// The session has moved on since, or the device fails.
    pub async fn read_chunk(
        &mut self,
        manifest: &mut Manifest,
        index: usize,
    ) -> Result<Vec<u8>, EngineError> {
        let (device, loaded, session) = self.parts_mut()?;
        if *session.head() != manifest.head() {
            let reason = "the session has moved on since the snapshot was begun".to_owned();
            return Err(EngineError::InvalidRequest { reason });
        }
        let chunk = manifest
            .chunks
            .get_mut(index)
            .ok_or_else(|| EngineError::InvalidRequest { reason: format!("there is no chunk {index}") })?;
        let range = chunk.offset as usize / 4..(chunk.offset as usize + chunk.bytes as usize) / 4;
        let kept = match chunk.part {
            Part::State(len) => session.checkpoint(len).and_then(|c| c.words.get(range.clone())),
            Part::Rows(_) => None,
        };
        let words = match kept {
            Some(words) => words.to_vec(),
            None => {
                let words = part_words(loaded.model.kept(), session.head(), chunk.part);
                device.read(&part(&words, range.start as u64, range.len() as u64)).await?
            }
        };
        let bytes: Vec<u8> = bytemuck::cast_slice(&words).to_vec();
        let digest = digest(&bytes);
        session.digests.learn(chunk, digest.clone());
        chunk.digest = Some(digest);
        Ok(bytes)
    }

    /// The manifest of a snapshot of which every chunk has been read now or before.
    ///
    /// # Errors
    /// One has not.
    pub fn complete_snapshot(&self, mut manifest: Manifest) -> Result<Manifest, EngineError> {
        if manifest.chunks.iter().any(|chunk| chunk.digest.is_none()) {
            let reason = "not all chunks of the snapshot have been read".to_owned();
            return Err(EngineError::InvalidRequest { reason });
        }
        manifest.digest = Some(manifest.own_digest()?);
        Ok(manifest)
    }

    /// Whether the resident model can go on from a snapshot.
    ///
    /// # Errors
    /// `snapshot_corrupt` where the manifest is damaged, `snapshot_mismatch` where it is of another model, of
    /// another kind of cache or in another format, `context_full` where the context is too short for it.
    pub fn begin_restore(&self, manifest: Manifest) -> Result<Restore, EngineError> {
        let loaded = self.loaded()?;
        let head = manifest.checked(loaded)?;
        let bytes = |at: u32| 4 * count(&loaded.model.kept().state(head.rows(at)));
        let mut kept: Vec<_> = head.checkpoints.iter().map(|&at| (at, bytes(at))).collect();
        thin_out(&mut kept, self.checkpoint_bytes());
        let states = kept.iter().map(|&(at, bytes)| (at, vec![0; bytes as usize / 4])).collect();
        Ok(Restore { number: None, seen: vec![false; manifest.chunks.len()], manifest, head, states })
    }

    /// Takes a chunk, in any order. The first ends the resident session.
    ///
    /// # Errors
    /// `snapshot_corrupt` where it is none of this snapshot's.
    pub async fn restore_chunk(&mut self, restore: &mut Restore, bytes: &[u8]) -> Result<(), EngineError> {
        let digest = digest(bytes);
        self.check_restore(restore)?;
        let Restore { number, manifest, head, seen, states } = restore;
        let is_this =
            |chunk: &Chunk| chunk.digest.as_ref() == Some(&digest) && chunk.bytes as usize == bytes.len();
        if !manifest.chunks.iter().any(is_this) {
            return Err(corrupt("a chunk is none of its manifest's, or is damaged"));
        }
        if number.is_none() {
            *number = Some(self.end_generation()?);
            self.name_session(None)?;
            self.parts_mut()?.2.tear();
        }
        let (device, loaded, _) = self.parts_mut()?;
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
        let same = manifest.chunks.iter().zip(seen).filter(|(chunk, seen)| is_this(chunk) && !**seen);
        for (chunk, seen) in same {
            let offset = chunk.offset as usize / 4;
            let state = match chunk.part {
                Part::State(at) => states.get_mut(&at),
                Part::Rows(_) => None,
            };
            if let Some(place) = state.and_then(|state| state.get_mut(offset..offset + words.len())) {
                place.copy_from_slice(&words);
            }
            let is_resident = match chunk.part {
                Part::State(at) => at as usize == head.ids.len(),
                Part::Rows(_) => true,
            };
            if is_resident {
                let place = part_words(loaded.model.kept(), head, chunk.part);
                device.write_all(&part(&place, offset as u64, words.len() as u64), &words).await?;
            }
            *seen = true;
        }
        Ok(())
    }

    /// Makes the snapshot the resident session.
    ///
    /// # Errors
    /// `snapshot_corrupt` where chunks are missing.
    pub fn finish_restore(&mut self, restore: Restore) -> Result<(), EngineError> {
        self.check_restore(&restore)?;
        let Restore { manifest, mut head, seen, states, .. } = restore;
        let n_missing = seen.iter().filter(|&&seen| !seen).count();
        if n_missing > 0 {
            return Err(corrupt(format!("{n_missing} of its {} chunks are missing", seen.len())));
        }
        self.end_generation()?;
        head.checkpoints = states.keys().copied().collect();
        let mut digests = ChunkDigests::default();
        for chunk in manifest.chunks {
            if let Some(digest) = chunk.digest.clone() {
                digests.learn(&chunk, digest);
            }
        }
        let checkpoints = states.into_iter().map(|(len, words)| Checkpoint { len, words }).collect();
        let (_, _, session) = self.parts_mut()?;
        session.replace(head, checkpoints, digests);
        Ok(())
    }
}

impl Engine {
    /// Whether nothing else has become of the resident session since a restore began.
    fn check_restore(&self, restore: &Restore) -> Result<(), EngineError> {
        let present = self.resident()?.generation;
        match restore.number.is_some_and(|number| number != present) {
            true => Err(outdated()),
            false => Ok(()),
        }
    }
}

impl Session {
    fn checkpoint(&self, len: u32) -> Option<&Checkpoint> {
        self.checkpoints.iter().find(|checkpoint| checkpoint.len == len)
    }
}

/// The model and how it is run, as far as a session depends on it.
fn fingerprint(loaded: &LoadedModel) -> Fingerprint {
    let model = &loaded.model;
    Fingerprint {
        model: loaded.digest.clone(),
        kv_cache: model.kv_cache().to_string(),
        geometry: model.kept().geometry(),
        rope: format!("{:?}", model.config().rope),
        adapters: Vec::new(),
    }
}

/// The words of a part.
fn part_words(kept: &Kept, head: &Head, part: Part) -> Vec<Words> {
    match part {
        Part::Rows([start, end]) => kept.rows(start..end),
        Part::State(len) => kept.state(head.rows(len)),
    }
}

/// The chunks of a session, without digests.
fn chunks<'h>(
    kept: &'h Kept,
    head: &'h Head,
    chunk_bytes: u32,
) -> Result<impl Iterator<Item = Chunk> + 'h, EngineError> {
    if !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes) || !chunk_bytes.is_multiple_of(4) {
        let reason = format!(
            "chunks of {chunk_bytes} bytes: give a multiple of 4 from {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}"
        );
        return Err(EngineError::InvalidRequest { reason });
    }
    let len = head.ids.len() as u32;
    let rows = kept.blocks(kept.settled(head.rows(len))).into_iter();
    let rows = rows.map(|Range { start, end }| Part::Rows([start, end]));
    let checkpoints = head.checkpoints.iter().filter(move |&&at| at < len).map(|&at| Part::State(at));
    Ok(rows.chain(checkpoints).chain([Part::State(len)]).flat_map(move |part| {
        let end = 4 * count(&part_words(kept, head, part));
        (0..end).step_by(chunk_bytes as usize).map(move |offset| {
            let bytes = (end - offset).min(chunk_bytes.into()) as u32;
            Chunk { part, offset, bytes, digest: None }
        })
    }))
}

/// XXH3 with 128 bits, in hexadecimal: it finds damage, and is no defence against forgery.
pub fn digest(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}

fn corrupt(reason: impl Into<String>) -> EngineError {
    EngineError::SnapshotCorrupt { reason: reason.into() }
}

fn mismatch(what: &'static str, theirs: impl ToString, ours: impl ToString) -> EngineError {
    EngineError::SnapshotMismatch { what, snapshot: theirs.to_string(), here: ours.to_string() }
}
