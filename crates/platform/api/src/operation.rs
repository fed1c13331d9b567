//! Operations: everything that can be asked of the platform, in one table.
//!
//! Routing, the OpenAPI document, authorization, rate limits and the map to
//! the command line all read this. It decides nothing. Tokens and grants have
//! no PATCH: what an id allows never changes, one takes it away and gives a
//! new one. Next: `operation/table.rs`, and `operation/surface.rs` for where each
//! can be done.

mod surface;
mod table;

use schemars::{JsonSchema, Schema, SchemaGenerator};

pub use surface::{Surface, Surfaces};
pub use table::Operation;

/// What is known of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Its id, such as `createApp`.
    pub id: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The path, with `{names}` in it.
    pub path: &'static str,
    /// Whether it reads, lists or writes.
    pub kind: Kind,
    /// How the caller proves who they are.
    pub auth: Auth,
    /// The action that the caller must be allowed, if it is not their own.
    pub capability: Option<&'static str>,
    /// The body that it takes.
    pub request: Option<SchemaOf>,
    /// The body that it answers with.
    pub response: SchemaOf,
    /// The status of a good answer.
    pub success: u16,
    /// What may stand behind the question mark, beside what its kind brings.
    pub query: &'static [Param],
    /// Whether a call must carry an idempotency key.
    pub idempotency: Need,
    /// Whether a call must say which version it is meant for.
    pub precondition: Precondition,
    /// What its calls are counted by.
    pub rate: Bucket,
    /// What it refuses with, beside what every operation may.
    pub errors: &'static [&'static str],
    /// The command that does the same, or `no: ` and why there is none.
    pub cli: &'static str,
}

/// Makes the schema of a type, its parts kept apart.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Reads.
    Get,
    /// Makes or does.
    Post,
    /// Replaces.
    Put,
    /// Changes.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    /// The method as HTTP writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// The method of that name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete]
            .into_iter()
            .find(|method| method.as_str() == text)
    }
}

/// What an operation does to the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads one thing.
    Read,
    /// Reads a list, in pages or as a stream.
    List,
    /// Changes something.
    Write,
}

/// How a caller proves who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Not at all.
    None,
    /// By a bearer token, or by the local socket.
    Caller,
    /// By the single-use token of an exec session.
    ExecToken,
}

/// Whether something must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It must.
    Required,
    /// It may.
    Allowed,
}

/// Whether a call says which version of the object it is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// It must: `If-Match`, or `expected_version` in the body.
    Required,
    /// It may.
    Allowed,
    /// There is no object yet.
    None,
}

/// What calls are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bucket {
    /// Logging in, by address.
    Auth,
    /// Reads, by org; by address where nobody has logged in.
    Read,
    /// Writes, by org.
    Write,
    /// Exec sessions of an org; also counted as writes.
    Exec,
}

/// Something behind the question mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: ParamKind,
    /// What it does.
    pub meaning: &'static str,
}

/// What a parameter may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// A text of 1 to 256 characters.
    Text,
    /// A place in what is read, as an answer named it.
    Place,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number between these.
    Number(u64, u64),
    /// `true` or `false`.
    Flag,
    /// A UTC time.
    Time,
}

/// What every list takes.
pub const LIST_PARAMS: &[Param] = &[
    Param {
        name: "limit",
        kind: ParamKind::Number(1, 200),
        meaning: "How many at most; 50 if absent.",
    },
    Param {
        name: "cursor",
        kind: ParamKind::Text,
        meaning: "Where to go on: `next_cursor` of the page before.",
    },
];

/// What an export takes. All its pages are of one tree: that of the first.
const EXPORT_PARAMS: &[Param] = &[
    Param {
        name: "after",
        kind: ParamKind::Number(0, (1 << 53) - 1),
        meaning: "Only what comes after this event: `next_after` of the page before.",
    },
    Param {
        name: "size",
        kind: ParamKind::Number(1, (1 << 53) - 1),
        meaning: "How many events the checkpoint covers: `size` of the first page, which has none.",
    },
    Param {
        name: "limit",
        kind: ParamKind::Number(1, 1_000),
        meaning: "How many at most; 500 if absent.",
    },
];

/// What every read takes.
pub const READ_PARAMS: &[Param] = &[Param {
    name: "min_seq",
    kind: ParamKind::Number(0, (1 << 53) - 1),
    meaning: "Waits until this event is in the view; as the header `Fluffy-Min-Seq`.",
}];

impl Spec {
    /// Whether it changes something.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        matches!(self.kind, Kind::Write)
    }

    /// Whether a key makes it happen once: logging in and out has none, because
    /// nobody is known there whose key it could be.
    #[must_use]
    pub const fn takes_key(&self) -> bool {
        self.is_write() && self.capability.is_some()
    }

    /// The names in its path, in order.
    pub fn path_params(&self) -> impl Iterator<Item = &'static str> {
        self.path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Everything that may stand behind the question mark.
    pub fn params(&self) -> impl Iterator<Item = &'static Param> {
        let list = matches!(self.kind, Kind::List).then_some(LIST_PARAMS);
        let read = (!self.is_write()).then_some(READ_PARAMS);
        self.query
            .iter()
            .chain(list.into_iter().flatten())
            .chain(read.into_iter().flatten())
    }
}

impl Operation {
    /// The operation of a method and a path, with what its path names.
    ///
    /// The names are given as they are written, percent signs included.
    #[must_use]
    pub fn find(method: Method, path: &str) -> Option<(Self, Vec<String>)> {
        Self::ALL.iter().copied().find_map(|operation| {
            let spec = operation.spec();
            if spec.method != method {
                return None;
            }
            Some((operation, path_values(spec.path, path)?))
        })
    }

    /// The methods that a path takes.
    #[must_use]
    pub fn methods(path: &str) -> Vec<Method> {
        let mut methods: Vec<_> = Self::ALL
            .iter()
            .map(|operation| operation.spec())
            .filter(|spec| path_values(spec.path, path).is_some())
            .map(|spec| spec.method)
            .collect();
        methods.sort_unstable();
        methods.dedup();
        methods
    }

    /// The operation of that id.
    #[must_use]
    pub fn by_id(id: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|operation| operation.spec().id == id)
    }

    /// The path with these values in it, in order; none if there are too few
    /// or too many.
    #[must_use]
    pub fn path_with(self, values: &[&str]) -> Option<String> {
        let mut values = values.iter();
        let mut path = String::new();
        for part in self.spec().path.split('/').skip(1) {
            path.push('/');
            if part.starts_with('{') {
                path.push_str(values.next()?);
            } else {
                path.push_str(part);
            }
        }
        values.next().is_none().then_some(path)
    }
}

/// What `path` has where the template has names, if the rest is equal.
fn path_values(template: &str, path: &str) -> Option<Vec<String>> {
    let mut values = Vec::new();
    let mut parts = path.split('/');
    for expected in template.split('/') {
        let part = parts.next()?;
        if expected.starts_with('{') {
            if part.is_empty() {
                return None;
            }
            values.push(part.to_owned());
        } else if part != expected {
            return None;
        }
    }
    parts.next().is_none().then_some(values)
}

/// The schema of a type.
fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

#[cfg(test)]
mod tests;
