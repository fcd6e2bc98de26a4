//! Snapshots in files: a folder, or a tar archive of its content, as the page exports and imports it.
//!
//! There is `manifest.json`, `data.json` where whoever wrote it had something to add, and `chunks/` with a
//! file for each chunk, named after its digest. No other name is read or written.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use pollster::block_on;
use serde_json::Value;
use signbit_engine::EngineError;
use signbit_engine::engine::Engine;
use signbit_engine::snapshot::{CHUNK_BYTES, Chunk, FORMAT, Manifest, digest};

use crate::error::CliError;
use crate::files::{read_error, write_error, write_whole};

const MANIFEST: &str = "manifest.json";
const DATA: &str = "data.json";
const CHUNKS: &str = "chunks";

/// The most bytes of a manifest that are read.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// A snapshot that lies in files. Its manifest is as it was written; its chunks have not been read.
pub struct SnapshotFiles {
    path: PathBuf,
    source: Source,
    /// Every chunk has a digest, which can be the name of a file.
    pub manifest: Manifest,
    /// Whether something was added that the engine does not know.
    pub has_data: bool,
}

enum Source {
    Folder,
    /// The bytes of each entry.
    Archive(File, BTreeMap<String, Range<u64>>),
}

/// What there is of a chunk.
pub enum Found {
    /// All of its bytes.
    Whole(Vec<u8>),
    /// No file.
    Missing,
    /// Other bytes.
    Damaged,
}

impl SnapshotFiles {
    /// Opens a folder or an archive.
    pub fn open(path: &Path) -> Result<Self, CliError> {
        let mut source = if path.is_dir() { Source::Folder } else { archive(path)? };
        let text = source.read(path, MANIFEST, MAX_MANIFEST_BYTES)?;
        let text = text.ok_or_else(|| no_snapshot(path, format!("there is no {MANIFEST}")))?;
        let no_manifest = |error: serde_json::Error| no_snapshot(path, format!("{MANIFEST}: {error}"));
        let value: Value = serde_json::from_slice(&text).map_err(no_manifest)?;
        if let Some(format) = value.get("format").filter(|format| **format != FORMAT) {
            let (snapshot, here) = (format.to_string(), FORMAT.to_string());
            return Err(EngineError::SnapshotMismatch { what: "format", snapshot, here }.into());
        }
        let manifest: Manifest = serde_json::from_value(value).map_err(no_manifest)?;
        manifest.check()?;
        if let Some((name, _)) = files(&manifest).find(|(name, _)| !is_digest(name)) {
            return Err(no_snapshot(path, format!("a chunk is called {name:?}")));
        }
        let has_data = source.has(path, DATA);
        Ok(Self { path: path.to_owned(), source, manifest, has_data })
    }

    /// The files of the chunks: each digest once, with its bytes.
    pub fn chunks(&self) -> BTreeMap<String, u32> {
        files(&self.manifest).map(|(digest, bytes)| (digest.to_owned(), bytes)).collect()
    }

    /// Reads a chunk and compares it with its digest.
    pub fn find(&mut self, digest: &str, bytes: u32) -> Result<Found, CliError> {
        let name = format!("{CHUNKS}/{digest}");
        Ok(match self.source.read(&self.path, &name, bytes.into())? {
            None => Found::Missing,
            Some(found) if is_chunk(&found, digest, bytes) => Found::Whole(found),
            Some(_) => Found::Damaged,
        })
    }

    /// Makes the snapshot the resident session of a model that it fits.
    pub fn restore(&mut self, engine: &mut Engine) -> Result<(), CliError> {
        let mut restore = engine.begin_restore(self.manifest.clone())?;
        for (digest, bytes) in self.chunks() {
            let reason = match self.find(&digest, bytes)? {
                Found::Whole(bytes) => {
                    block_on(engine.restore_chunk(&mut restore, &bytes))?;
                    continue;
                }
                Found::Missing => format!("the chunk {digest} is missing"),
                Found::Damaged => format!("the chunk {digest} is damaged"),
            };
            return Err(no_snapshot(&self.path, reason));
        }
        Ok(engine.finish_restore(restore)?)
    }
}

impl Source {
    /// A file's bytes, or one more than `most` of them; nothing where there is no such file.
    fn read(&mut self, path: &Path, name: &str, most: u64) -> Result<Option<Vec<u8>>, CliError> {
        let mut bytes = Vec::new();
        match self {
            Self::Folder => {
                let path = path.join(name);
                let file = match File::open(&path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                    file => file.map_err(read_error(&path))?,
                };
                file.take(most + 1).read_to_end(&mut bytes).map_err(read_error(&path))?;
            }
            Self::Archive(file, entries) => {
                let Some(range) = entries.get(name) else { return Ok(None) };
                let n_bytes = (range.end - range.start).min(most + 1);
                file.seek(SeekFrom::Start(range.start)).map_err(read_error(path))?;
                file.take(n_bytes).read_to_end(&mut bytes).map_err(read_error(path))?;
            }
        }
        Ok(Some(bytes))
    }

    fn has(&self, path: &Path, name: &str) -> bool {
        match self {
            Self::Folder => path.join(name).is_file(),
            Self::Archive(_, entries) => entries.contains_key(name),
        }
    }
}

/// The entries of an archive, which must be a session's and whole.
fn archive(path: &Path) -> Result<Source, CliError> {
    let file = File::open(path).map_err(read_error(path))?;
    let n_bytes = file.metadata().map_err(read_error(path))?.len();
    let no_archive = |error: std::io::Error| no_snapshot(path, error.to_string());
    let mut reader = tar::Archive::new(&file);
    let mut entries = BTreeMap::new();
    for entry in reader.entries_with_seek().map_err(no_archive)? {
        let entry = entry.map_err(no_archive)?;
        let (kind, start) = (entry.header().entry_type(), entry.raw_file_position());
        if kind.is_dir() || kind.is_pax_global_extensions() {
            continue;
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        // An archive of the unpacked folder begins every name so.
        let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
        let digest = name.strip_prefix(CHUNKS).and_then(|rest| rest.strip_prefix('/'));
        if !kind.is_file() || !(name == MANIFEST || name == DATA || digest.is_some_and(is_digest)) {
            return Err(no_snapshot(path, format!("{name:?} is nothing that belongs to one")));
        }
        let end = start.saturating_add(entry.size());
        if end > n_bytes {
            return Err(no_snapshot(path, format!("the archive ends early, within {name}")));
        }
        if entries.insert(name.clone(), start..end).is_some() {
            return Err(no_snapshot(path, format!("{name} is there twice")));
        }
    }
    Ok(Source::Archive(file, entries))
}

/// Takes a snapshot of the resident session, and gives `write` each chunk with its digest. Returns the manifest.
pub fn read_session(
    engine: &mut Engine,
    mut write: impl FnMut(&str, Vec<u8>) -> Result<(), CliError>,
) -> Result<Manifest, CliError> {
    let mut manifest = engine.snapshot(CHUNK_BYTES)?;
    for index in 0..manifest.chunks.len() {
        let bytes = block_on(engine.read_chunk(&mut manifest, index))?;
        if let Some(Chunk { digest: Some(digest), .. }) = manifest.chunks.get(index) {
            write(digest, bytes)?;
        }
    }
    Ok(engine.complete_snapshot(manifest)?)
}

/// Where a snapshot is to be written.
pub enum Target {
    /// A folder.
    Folder(PathBuf),
    /// A tar archive.
    Archive(PathBuf),
}

impl Target {
    /// An archive if the name ends in `.tar`, else a folder: a new one, an empty one, or one that holds nothing but
    /// a snapshot.
    pub fn new(path: &Path) -> Result<Self, CliError> {
        if path.extension().is_some_and(|extension| extension == "tar") {
            return Ok(Self::Archive(path.to_owned()));
        }
        let occupied = |name: &Path| {
            let (path, name) = (path.display(), name.display());
            CliError::Usage(format!(
                "{path} holds {name}, which is no part of a snapshot; name another folder"
            ))
        };
        let is_part =
            |name: &str| [MANIFEST, DATA, CHUNKS].contains(&name) || partial_of(name) == Some(MANIFEST);
        for name in names(path)? {
            if !name.to_str().is_some_and(is_part) {
                return Err(occupied(&name));
            }
        }
        let is_chunk = |name: &str| is_digest(partial_of(name).unwrap_or(name));
        for name in names(&path.join(CHUNKS))? {
            if !name.to_str().is_some_and(is_chunk) {
                return Err(occupied(&Path::new(CHUNKS).join(name)));
            }
        }
        // Many things are described by a file of this name.
        let manifest = Source::Folder.read(path, MANIFEST, MAX_MANIFEST_BYTES)?;
        let is_manifest = |text: Vec<u8>| serde_json::from_slice::<Manifest>(&text).is_ok();
        if !manifest.is_none_or(is_manifest) {
            return Err(occupied(Path::new(MANIFEST)));
        }
        Ok(Self::Folder(path.to_owned()))
    }

    /// Writes a snapshot of the resident session. What was there stays whole until the new one is, and no
    /// chunk of it is left then that the new one does not have as well.
    pub fn write(&self, engine: &mut Engine) -> Result<Manifest, CliError> {
        match self {
            Self::Folder(path) => write_folder(path, engine),
            Self::Archive(path) => write_whole(path, |path| write_archive(path, engine)),
        }
    }
}

fn write_folder(path: &Path, engine: &mut Engine) -> Result<Manifest, CliError> {
    let folder = path.join(CHUNKS);
    std::fs::create_dir_all(&folder).map_err(write_error(&folder))?;
    let manifest = read_session(engine, |name, bytes| {
        let path = folder.join(name);
        // Of a session that has grown most chunks are there.
        let is_there = std::fs::read(&path).is_ok_and(|found| digest(&found) == name);
        if is_there { Ok(()) } else { write_whole(&path, |path| write_synced(path, &bytes)) }
    })?;
    let text = to_json(path, &manifest)?;
    write_whole(&path.join(MANIFEST), |path| write_synced(path, &text))?;
    let kept: HashSet<&str> = files(&manifest).map(|(digest, _)| digest).collect();
    let left = names(&folder)?.into_iter().filter(|name| !name.to_str().is_some_and(|n| kept.contains(n)));
    let data = path.join(DATA);
    // It was said of the snapshot before.
    for path in left.map(|name| folder.join(name)).chain(data.exists().then_some(data)) {
        std::fs::remove_file(&path).map_err(write_error(&path))?;
    }
    Ok(manifest)
}

fn write_archive(path: &Path, engine: &mut Engine) -> Result<Manifest, CliError> {
    let failed = write_error(path);
    let file = File::create(path).map_err(&failed)?;
    let mut archive = tar::Builder::new(BufWriter::new(file));
    let mut written = HashSet::new();
    let mut append = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, bytes).map_err(&failed)
    };
    let manifest = read_session(engine, |digest, bytes| match written.insert(digest.to_owned()) {
        true => append(&format!("{CHUNKS}/{digest}"), &bytes),
        false => Ok(()),
    })?;
    append(MANIFEST, &to_json(path, &manifest)?)?;
    let file = archive.into_inner().map_err(&failed)?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(&failed)?;
    Ok(manifest)
}

/// Writes a file that is on the disk before it gets its name.
fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let write = |mut file: File| file.write_all(bytes).and_then(|()| file.sync_all());
    File::create(path).and_then(write).map_err(write_error(path))
}

fn to_json(path: &Path, manifest: &Manifest) -> Result<Vec<u8>, CliError> {
    serde_json::to_vec(manifest).map_err(|error| write_error(path)(error.into()))
}

/// Names in a folder; none where there is no folder.
fn names(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(write_error(folder))?,
    };
    entries.map(|entry| Ok(entry.map_err(write_error(folder))?.file_name().into())).collect()
}

/// The name that a file is to get once it is whole.
fn partial_of(name: &str) -> Option<&str> {
    name.strip_suffix(".partial")
}

/// Digest and bytes of each chunk.
fn files(manifest: &Manifest) -> impl Iterator<Item = (&str, u32)> {
    manifest.chunks.iter().map(|chunk| (chunk.digest.as_deref().unwrap_or_default(), chunk.bytes))
}

fn is_digest(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_chunk(found: &[u8], name: &str, bytes: u32) -> bool {
    found.len() == bytes as usize && digest(found) == name
}

fn no_snapshot(path: &Path, reason: impl Into<String>) -> CliError {
    CliError::NoSnapshot { path: path.to_owned(), reason: reason.into() }
}
