//! Metadata: key-value pairs in file order, with getters that check types and ranges.

use crate::cursor::{Cursor, Stop};
use crate::{GgufError, Result};

/// An array of strings in one buffer.
///
/// A vocabulary has hundreds of thousands of entries; one allocation each would be most of the
/// cost of reading a header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StringArray {
    text: String,
    /// End of each string in `text`. The header limit keeps these below 2^32.
    ends: Vec<u32>,
}

impl StringArray {
    /// Number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize,
            None => 0,
        };
        self.text.get(start..end)
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }

    fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len() as u32);
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut out = Self::default();
        for string in strings {
            out.push(string.as_ref());
        }
        out
    }
}

/// An array value. All elements have one type; arrays of arrays do not exist.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's element types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's value types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether the array has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, if they are of any integer type.
    fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        Some(match self {
            Self::U8(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::I8(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::U16(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::I16(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::U32(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::I32(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::U64(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::I64(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) => return None,
        })
    }

    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, Stop> {
        const WHAT: &str = "a metadata array";
        let id = cursor.u32(WHAT)?;
        let count = cursor.u64(WHAT)?;
        if id == 9 {
            return Err(GgufError::NestedArray { key: key.into() }.into());
        }
        if id == 8 {
            // Each string has at least its 8-byte length.
            cursor.can_follow(count.saturating_mul(8), WHAT)?;
            let mut strings = StringArray::default();
            strings.ends.reserve((cursor.available() / 8).min(count as usize));
            for _ in 0..count {
                strings.push(cursor.str("a string in a metadata array")?);
            }
            return Ok(Self::String(strings));
        }
        let mut numbers = |width: u64| cursor.take(count.saturating_mul(width), WHAT);
        Ok(match id {
            0 => Self::U8(numbers(1)?.to_vec()),
            1 => Self::I8(numbers(1)?.iter().map(|&byte| byte as i8).collect()),
            2 => Self::U16(decode(numbers(2)?, u16::from_le_bytes)),
            3 => Self::I16(decode(numbers(2)?, i16::from_le_bytes)),
            4 => Self::U32(decode(numbers(4)?, u32::from_le_bytes)),
            5 => Self::I32(decode(numbers(4)?, i32::from_le_bytes)),
            6 => Self::F32(decode(numbers(4)?, f32::from_le_bytes)),
            7 => Self::Bool(numbers(1)?.iter().map(|&byte| byte != 0).collect()),
            10 => Self::U64(decode(numbers(8)?, u64::from_le_bytes)),
            11 => Self::I64(decode(numbers(8)?, i64::from_le_bytes)),
            12 => Self::F64(decode(numbers(8)?, f64::from_le_bytes)),
            _ => return Err(GgufError::UnknownValueType { key: key.into(), id }.into()),
        })
    }
}

fn decode<const N: usize, T>(bytes: &[u8], element: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&chunk| element(chunk)).collect()
}

impl Value {
    pub(crate) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, Stop> {
        const WHAT: &str = "a metadata value";
        let id = cursor.u32(WHAT)?;
        Ok(match id {
            0 => Self::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
            1 => Self::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
            2 => Self::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
            3 => Self::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
            4 => Self::U32(cursor.u32(WHAT)?),
            5 => Self::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
            6 => Self::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
            7 => Self::Bool(cursor.array(WHAT)? != [0u8]),
            8 => Self::String(cursor.str(WHAT)?.into()),
            9 => Self::Array(Array::read(cursor, key)?),
            10 => Self::U64(cursor.u64(WHAT)?),
            11 => Self::I64(cursor.i64(WHAT)?),
            12 => Self::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
            _ => return Err(GgufError::UnknownValueType { key: key.into(), id }.into()),
        })
    }

    /// The format's name of this value's type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// The value as an integer, if it is of any integer type.
    #[must_use]
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::I64(x) => x.into(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => return None,
        })
    }
}

macro_rules! value_from {
    ($($from:ty => $value:expr;)*) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                let wrap: fn($from) -> Value = $value;
                wrap(value)
            }
        })*
    };
}

value_from! {
    u8 => Value::U8;
    u16 => Value::U16;
    u32 => Value::U32;
    i32 => Value::I32;
    u64 => Value::U64;
    i64 => Value::I64;
    f32 => Value::F32;
    f64 => Value::F64;
    bool => Value::Bool;
    &str => |s| Value::String(s.into());
    String => Value::String;
    Vec<u32> => |v| Value::Array(Array::U32(v));
    Vec<i32> => |v| Value::Array(Array::I32(v));
    Vec<f32> => |v| Value::Array(Array::F32(v));
    Vec<bool> => |v| Value::Array(Array::Bool(v));
    StringArray => |v| Value::Array(Array::String(v));
    Vec<String> => |v| Value::Array(Array::String(v.into_iter().collect()));
    Vec<&str> => |v| Value::Array(Array::String(v.into_iter().collect()));
}

/// The metadata of a file, in file order; keys are unique.
///
/// Each getter comes in two forms: `get_*` gives `None` for a key that is absent, `require_*`
/// fails. Both fail for a value of the wrong type or out of range. Integer getters accept every
/// integer width, because writers disagree on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<u32>,
}

impl Metadata {
    /// # Errors
    /// [`GgufError::DuplicateKey`].
    pub(crate) fn new(entries: Vec<(String, Value)>) -> Result<Self> {
        let key = |index: u32| entries.get(index as usize).map(|(key, _)| key.as_str());
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        by_key.sort_unstable_by_key(|&index| key(index));
        if let Some([first, _]) = by_key.array_windows().find(|[first, second]| key(*first) == key(*second)) {
            return Err(GgufError::DuplicateKey { key: key(*first).unwrap_or_default().into() });
        }
        Ok(Self { entries, by_key })
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`, whatever its type.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = |index: u32| self.entries.get(index as usize);
        let slot = self
            .by_key
            .binary_search_by_key(&Some(key), |&index| at(index).map(|(key, _)| key.as_str()))
            .ok()?;
        at(*self.by_key.get(slot)?).map(|(_, value)| value)
    }

    /// Whether `key` is present.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<Result<T>>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(result) => result.map(Some),
            None => Err(GgufError::WrongValueType { key: key.into(), expected, found: value.type_name() }),
        }
    }

    /// An integer of any width that fits a `u32`.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`], [`GgufError::ValueOutOfRange`].
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "an integer", |value| Some(in_range(key, value.as_integer()?, "u32")))
    }

    /// An integer of any width that fits an `i32`.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`], [`GgufError::ValueOutOfRange`].
    pub fn get_i32(&self, key: &str) -> Result<Option<i32>> {
        self.typed(key, "an integer", |value| Some(in_range(key, value.as_integer()?, "i32")))
    }

    /// A 32-bit or 64-bit float, rounded to `f32`. It may be infinite or NaN.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`].
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "f32", |value| match *value {
            Value::F32(x) => Some(Ok(x)),
            Value::F64(x) => Some(Ok(x as f32)),
            _ => None,
        })
    }

    /// A bool.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`].
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "bool", |value| match *value {
            Value::Bool(x) => Some(Ok(x)),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`].
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "string", |value| match value {
            Value::String(x) => Some(Ok(x.as_str())),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`].
    pub fn get_str_array(&self, key: &str) -> Result<Option<&StringArray>> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(x)) => Some(Ok(x)),
            _ => None,
        })
    }

    /// An array of bools.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`].
    pub fn get_bool_array(&self, key: &str) -> Result<Option<&[bool]>> {
        self.typed(key, "an array of bools", |value| match value {
            Value::Array(Array::Bool(x)) => Some(Ok(x.as_slice())),
            _ => None,
        })
    }

    /// An array of 32-bit floats.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`].
    pub fn get_f32_array(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(x)) => Some(Ok(x.as_slice())),
            _ => None,
        })
    }

    /// An array of integers of any width, each of which fits an `i32`.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`], [`GgufError::ValueOutOfRange`].
    pub fn get_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.typed(key, "an array of integers", |value| match value {
            Value::Array(array) => Some(array.integers()?.map(|x| in_range(key, x, "i32")).collect()),
            _ => None,
        })
    }

    /// An array of integers of any width, each of which fits a `u32`.
    ///
    /// # Errors
    /// [`GgufError::WrongValueType`], [`GgufError::ValueOutOfRange`].
    pub fn get_u32_array(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.typed(key, "an array of integers", |value| match value {
            Value::Array(array) => Some(array.integers()?.map(|x| in_range(key, x, "u32")).collect()),
            _ => None,
        })
    }

    /// Like [`Metadata::get_u32`], for a key that must be there.
    ///
    /// # Errors
    /// Also [`GgufError::MissingKey`].
    pub fn require_u32(&self, key: &str) -> Result<u32> {
        present(key, self.get_u32(key)?)
    }

    /// Like [`Metadata::get_f32`], for a key that must be there.
    ///
    /// # Errors
    /// Also [`GgufError::MissingKey`].
    pub fn require_f32(&self, key: &str) -> Result<f32> {
        present(key, self.get_f32(key)?)
    }

    /// Like [`Metadata::get_bool`], for a key that must be there.
    ///
    /// # Errors
    /// Also [`GgufError::MissingKey`].
    pub fn require_bool(&self, key: &str) -> Result<bool> {
        present(key, self.get_bool(key)?)
    }

    /// Like [`Metadata::get_str`], for a key that must be there.
    ///
    /// # Errors
    /// Also [`GgufError::MissingKey`].
    pub fn require_str(&self, key: &str) -> Result<&str> {
        present(key, self.get_str(key)?)
    }

    /// Like [`Metadata::get_str_array`], for a key that must be there.
    ///
    /// # Errors
    /// Also [`GgufError::MissingKey`].
    pub fn require_str_array(&self, key: &str) -> Result<&StringArray> {
        present(key, self.get_str_array(key)?)
    }

    /// Like [`Metadata::get_i32_array`], for a key that must be there.
    ///
    /// # Errors
    /// Also [`GgufError::MissingKey`].
    pub fn require_i32_array(&self, key: &str) -> Result<Vec<i32>> {
        present(key, self.get_i32_array(key)?)
    }
}

fn present<T>(key: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| GgufError::MissingKey { key: key.into() })
}

fn in_range<T: TryFrom<i128>>(key: &str, value: i128, expected: &'static str) -> Result<T> {
    T::try_from(value).map_err(|_| GgufError::ValueOutOfRange { key: key.into(), value, expected })
}
