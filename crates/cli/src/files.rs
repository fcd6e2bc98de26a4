//! Reading model files and JSON files.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use pollster::block_on;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};
use signbit_engine::EngineError;
use signbit_engine::config::ModelConfig;
use signbit_engine::digest::ModelDigest;
use signbit_engine::engine::Engine;
use signbit_engine::loader::Loader;
use signbit_engine::model::ModelOptions;
use signbit_gguf::split::{SplitInfo, check_parts, parse_part_name, part_name};
use signbit_gguf::{Header, Parse, TensorInfo};
use signbit_tokenizer::Message;

use crate::error::CliError;

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// The model that is part of the tool.
const BUILT_IN: &[u8] = include_bytes!("../../../models/signbit-mini.gguf");

trait Source: Read + Seek {}

impl<T: Read + Seek> Source for T {}

/// A model file that is open, with its header.
struct Part {
    path: PathBuf,
    file: Box<dyn Source>,
    n_bytes: u64,
    header: Header,
}

/// The error of a file that could not be read.
pub fn read_error(path: &Path) -> impl Fn(std::io::Error) -> CliError {
    move |source| CliError::Read { path: path.to_owned(), source }
}

impl Part {
    /// Reads the header and nothing behind it, apart from the rest of the last prefix.
    fn open(path: &Path) -> Result<Self, CliError> {
        let failed = read_error(path);
        let file = File::open(path).map_err(&failed)?;
        let n_bytes = file.metadata().map_err(&failed)?.len();
        Self::read_header(path, Box::new(file), n_bytes)
    }

    fn read_header(path: &Path, mut file: Box<dyn Source>, n_bytes: u64) -> Result<Self, CliError> {
        let failed = read_error(path);
        let mut prefix = Vec::new();
        loop {
            let at_least = match Header::parse(&prefix, Some(n_bytes))? {
                Parse::Complete(header) => return Ok(Self { path: path.to_owned(), file, n_bytes, header }),
                Parse::NeedMore { at_least } => at_least,
            };
            let missing = at_least.saturating_sub(prefix.len() as u64);
            let n_read = file.by_ref().take(missing).read_to_end(&mut prefix).map_err(&failed)?;
            if n_read == 0 {
                // The file ends inside its header; parsing it as a whole says so.
                let header = Header::parse_file(&prefix)?;
                return Ok(Self { path: path.to_owned(), file, n_bytes, header });
            }
        }
    }

    /// The file's SHA-256; its tensors among `used` are added to `digest`.
    fn hash(
        &mut self,
        index: usize,
        used: &HashSet<String>,
        digest: &mut ModelDigest,
    ) -> Result<String, CliError> {
        let data_start = self.header.data_start;
        let mut tensors: Vec<TensorInfo> =
            self.header.tensors.iter().filter(|t| used.contains(&t.name)).cloned().collect();
        tensors.sort_by_key(|tensor| tensor.offset);
        let mut tensors = tensors.iter().peekable();
        let (mut sha256, mut at) = (Sha256::new(), 0u64);
        self.stream(|bytes| {
            sha256.update(bytes);
            let piece_end = at + bytes.len() as u64;
            while let Some(tensor) = tensors.peek() {
                let start = data_start + tensor.offset;
                let end = start + tensor.n_bytes;
                let range = start.clamp(at, piece_end) - at..end.clamp(at, piece_end) - at;
                digest.update(bytes.get(range.start as usize..range.end as usize).unwrap_or_default());
                if end > piece_end {
                    break;
                }
                digest.end_tensor(tensor);
                tensors.next();
            }
            at = piece_end;
            Ok(Flow::More)
        })?;
        match tensors.next() {
            Some(_) => {
                let needed =
                    data_start + self.header.tensors.iter().map(|t| t.offset + t.n_bytes).max().unwrap_or(0);
                Err(EngineError::Truncated { part: index, seen: at, needed }.into())
            }
            None => Ok(hex(sha256)),
        }
    }

    /// Gives the file to `push`, piece by piece.
    fn stream(&mut self, mut push: impl FnMut(&[u8]) -> Result<Flow, CliError>) -> Result<(), CliError> {
        let failed = read_error(&self.path);
        self.file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let n_read = self.file.read(&mut chunk).map_err(&failed)?;
            let piece = chunk.get(..n_read).unwrap_or_default();
            if piece.is_empty() || push(piece)? == Flow::Enough {
                return Ok(());
            }
        }
    }
}

#[derive(PartialEq)]
enum Flow {
    More,
    Enough,
}

/// A model's files, in order, with their headers.
pub struct ModelFiles {
    parts: Vec<Part>,
    /// The SHA-256 that each part must have, if any.
    expected: Vec<String>,
}

/// What identifies a model: its files and what they hold.
#[derive(serde::Serialize)]
pub struct Identity {
    /// SHA-256 of each file.
    pub sha256: Vec<String>,
    /// See [`signbit_engine::digest`].
    pub digest: String,
}

/// A hash as lower-case hexadecimal digits.
fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ModelFiles {
    /// Opens a model. For a split model `path` names one of its parts, and the others lie beside it.
    pub fn open(path: &Path) -> Result<Self, CliError> {
        let first = Part::open(path)?;
        let Some(split) = SplitInfo::from_metadata(&first.header.metadata)? else {
            return Ok(Self::of(vec![first]));
        };
        let name = path.to_string_lossy();
        let (prefix, count) = match parse_part_name(&name) {
            Some((prefix, _, count)) if count == split.count => (prefix, count),
            _ => {
                let example = part_name("model", 0, split.count);
                let reason =
                    format!("{name} is one of {} parts, whose names must be like {example}", split.count);
                return Err(CliError::Usage(reason));
            }
        };
        let parts = (0..count).map(|index| Part::open(Path::new(&part_name(prefix, index, count))));
        Ok(Self::of(parts.collect::<Result<_, _>>()?))
    }

    fn of(parts: Vec<Part>) -> Self {
        Self { parts, expected: Vec::new() }
    }

    /// Makes [`ModelFiles::load`] refuse files with another SHA-256 than these, one for each part; without any
    /// it takes all.
    pub fn expecting(self, sha256: &[String]) -> Result<Self, CliError> {
        let (given, parts) = (sha256.len(), self.parts.len());
        if given != 0 && given != parts {
            return Err(CliError::Usage(format!(
                "--sha256 is given {given} times, and the model has {parts} files"
            )));
        }
        Ok(Self { expected: sha256.to_vec(), ..self })
    }

    /// Opens a model, or the built-in one where no path is given.
    pub fn open_or_built_in(path: Option<&Path>) -> Result<Self, CliError> {
        if let Some(path) = path {
            return Self::open(path);
        }
        let file = Box::new(Cursor::new(BUILT_IN));
        let part = Part::read_header(Path::new("the built-in model"), file, BUILT_IN.len() as u64)?;
        Ok(Self::of(vec![part]))
    }

    /// A model in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, CliError> {
        let n_bytes = bytes.len() as u64;
        let part = Part::read_header(Path::new("a model in memory"), Box::new(Cursor::new(bytes)), n_bytes)?;
        Ok(Self::of(vec![part]))
    }

    /// Bytes of all files.
    pub fn n_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.n_bytes).sum()
    }

    /// Number of files.
    pub fn n_parts(&self) -> usize {
        self.parts.len()
    }

    /// The header of each part.
    pub fn headers(&self) -> Vec<Header> {
        self.parts.iter().map(|part| part.header.clone()).collect()
    }

    /// One header with the tensors of all parts.
    pub fn header(&self) -> Result<Header, CliError> {
        let headers = self.headers();
        check_parts(&headers)?;
        let tensors = headers.iter().flat_map(|h| h.tensors.iter().cloned()).collect();
        let first = headers.into_iter().next().ok_or(signbit_gguf::GgufError::NoParts)?;
        Ok(Header { tensors, ..first })
    }

    /// Loads the model, a piece at a time. A file that is not the expected one leaves nothing behind.
    pub fn load(&mut self, engine: &mut Engine, options: ModelOptions) -> Result<(), CliError> {
        engine.unload();
        let mut loader = Loader::new(options);
        if let Err(error) = self.push(engine, &mut loader) {
            engine.unload();
            return Err(error);
        }
        block_on(engine.install(loader))?;
        Ok(())
    }

    fn push(&mut self, engine: &mut Engine, loader: &mut Loader) -> Result<(), CliError> {
        if self.parts.len() > 1 {
            for (index, part) in self.parts.iter_mut().enumerate() {
                loader.begin_part(index, Some(part.n_bytes))?;
                part.stream(|bytes| {
                    let progress = block_on(loader.push(engine.device_mut(), bytes))?;
                    Ok(if progress.header_complete { Flow::Enough } else { Flow::More })
                })?;
            }
        }
        for (index, part) in self.parts.iter_mut().enumerate() {
            let expected = self.expected.get(index);
            let mut sha256 = Sha256::new();
            loader.begin_part(index, Some(part.n_bytes))?;
            part.stream(|bytes| {
                if expected.is_some() {
                    sha256.update(bytes);
                }
                block_on(loader.push(engine.device_mut(), bytes))?;
                Ok(Flow::More)
            })?;
            block_on(loader.end_part(engine.device_mut()))?;
            let Some(expected) = expected else { continue };
            let found = hex(sha256);
            if found != *expected {
                let (path, expected) = (part.path.clone(), expected.clone());
                return Err(CliError::WrongSha256 { path, expected, found });
            }
        }
        Ok(())
    }

    /// Reads all files and hashes them.
    pub fn identity(&mut self) -> Result<Identity, CliError> {
        let headers = self.headers();
        let config = ModelConfig::from_parts(&headers)?;
        let used: HashSet<String> = config.expected_tensors().into_iter().map(|(name, _)| name).collect();
        let first = headers.first().ok_or(signbit_gguf::GgufError::NoParts)?;
        let mut digest = ModelDigest::new(&first.metadata)?;
        let parts = self.parts.iter_mut().enumerate().map(|(i, part)| part.hash(i, &used, &mut digest));
        let sha256 = parts.collect::<Result<_, _>>()?;
        Ok(Identity { sha256, digest: digest.finish() })
    }
}

fn read_json(path: &Path, expected: &'static str) -> Result<Value, CliError> {
    let text = std::fs::read(path).map_err(read_error(path))?;
    serde_json::from_slice(&text).map_err(|source| CliError::Json { path: path.to_owned(), expected, source })
}

/// A question with its one right answer.
#[derive(Debug, serde::Deserialize)]
pub struct Question {
    /// What it is about; answers are counted by kind.
    pub kind: String,
    /// The conversation up to the question.
    pub messages: Vec<Message>,
    /// Whether to think first.
    #[serde(default)]
    pub thinking: bool,
    /// The right answer.
    pub expected: String,
    /// What a reference generates, the stop id included.
    pub answer_ids: Option<Vec<u32>>,
    /// How little the reference preferred its choice over the next best, in logits, where it was closest.
    pub smallest_gap: Option<f32>,
}

/// Questions: an array, or an object that has it as `cases`.
pub fn read_questions(path: &Path) -> Result<Vec<Question>, CliError> {
    read_array(path, "cases", "an array of questions")
}

/// Reads an array that stands alone or under `key` of an object.
fn read_array<T: DeserializeOwned>(
    path: &Path,
    key: &str,
    expected: &'static str,
) -> Result<Vec<T>, CliError> {
    let value = match read_json(path, expected)? {
        Value::Object(mut object) => object.remove(key).unwrap_or(Value::Object(object)),
        value => value,
    };
    serde_json::from_value(value).map_err(|source| CliError::Json { path: path.to_owned(), expected, source })
}

/// Token ids: `[1, 2]` or `{"ids": [1, 2]}`.
pub fn read_ids(path: &Path) -> Result<Vec<u32>, CliError> {
    read_array(path, "ids", "an array of token ids")
}

/// Messages: an array, or an object that has it as `messages`.
pub fn read_messages(path: &Path) -> Result<Vec<Message>, CliError> {
    read_array(path, "messages", "an array of chat messages")
}

/// Tools: an array, or an object that has it as `tools`.
pub fn read_tools(path: &Path) -> Result<Vec<Value>, CliError> {
    read_array(path, "tools", "an array of tools")
}

/// Texts: an array of strings.
pub fn read_texts(path: &Path) -> Result<Vec<String>, CliError> {
    read_array(path, "texts", "an array of texts")
}

/// Gives a file its name only once `write`, which gets another path, has made it complete.
pub fn write_whole<T>(path: &Path, write: impl FnOnce(&Path) -> Result<T, CliError>) -> Result<T, CliError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let rename = |written| std::fs::rename(&partial, path).map(|()| written).map_err(write_error(path));
    let result = write(&partial).and_then(rename);
    if result.is_err() {
        // Where this fails too, the first failure is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    result
}

/// The error of a file that could not be written.
pub fn write_error(path: &Path) -> impl Fn(std::io::Error) -> CliError {
    move |source| CliError::Write { path: path.to_owned(), source }
}
