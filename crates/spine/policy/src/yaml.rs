//! YAML as a tree in which each key and value knows its place.
//!
//! Reads the plain part of YAML that policies and manifests need. Anchors,
//! aliases, tags, merge keys, directives and further documents are refused:
//! each lets a text mean something other than what a reviewer sees. All sizes
//! are bounded before anything is built. What the tree means is for
//! [`crate::document`] and for the manifests of plugins.

use std::borrow::Cow;
use std::collections::HashSet;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use crate::diagnostic::{Findings, Place};

/// The longest single value, in bytes.
const MAX_SCALAR: usize = 64 << 10;

const MAX_NODES: usize = 2_000_000;

/// How large a text may be; checked before and while it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of the whole text.
    pub bytes: usize,
    /// How deep lists and mappings may lie in each other.
    pub depth: usize,
}

/// What a policy or a test table may be.
pub(crate) const POLICY: Bounds = Bounds {
    bytes: 8 << 20,
    depth: 12,
};

/// One value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node<'t> {
    /// Where.
    pub place: Place,
    /// What.
    pub value: Value<'t>,
}

/// A value, not yet of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'t> {
    /// Nothing, written so or left out.
    Null,
    /// A single value; `plain` tells `true` from `"true"`.
    Text {
        /// As it reads, without quotes.
        text: Cow<'t, str>,
        /// Whether it stood there without quotes.
        plain: bool,
    },
    /// Values in their order.
    List(Vec<Node<'t>>),
    /// Fields in their order; no name is there twice.
    Map(Vec<(Key<'t>, Node<'t>)>),
}

/// The name of a field and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key<'t> {
    /// Where.
    pub place: Place,
    /// The name.
    pub text: Cow<'t, str>,
}

/// Reads one document; `None` after an error, which is then in `findings`.
pub fn read<'t>(text: &'t str, bounds: Bounds, findings: &mut Findings) -> Option<Node<'t>> {
    let Bounds { bytes, depth } = bounds;
    if text.len() > bytes {
        findings.error(
            Place {
                line: 1,
                column: 1,
                offset: 0,
                length: 0,
            },
            format!("the text has {} bytes", text.len()),
            "a file is read whole, so its size is bounded before it is parsed",
            format!("keep it under {bytes} bytes"),
        );
        return None;
    }
    let options = granit_parser::options! {
        disallow_directives: true,
        flow_nesting_limit: depth,
        block_nesting_limit: depth,
    };
    let mut tree = Tree {
        open: Vec::new(),
        root: None,
        nodes: 0,
    };
    for next in Parser::new_from_str_with_options(text, options) {
        let (event, span) = match next {
            Ok(event) => event,
            Err(error) => {
                report_scan_error(&error, findings);
                return None;
            }
        };
        if let Err(refusal) = tree.take(event, place_of(&span)) {
            findings.error(refusal.place, refusal.what, refusal.why, refusal.help);
            return None;
        }
    }
    let start = Place {
        line: 1,
        column: 1,
        offset: 0,
        length: 0,
    };
    Some(tree.root.unwrap_or(Node {
        place: start,
        value: Value::Null,
    }))
}

fn report_scan_error(error: &ScanError, findings: &mut Findings) {
    let marker = error.marker();
    let place = Place {
        line: count(marker.line()),
        column: count(marker.col()).saturating_add(1),
        offset: marker.byte_offset().unwrap_or(marker.index()),
        length: 0,
    };
    findings.error(
        place,
        error.kind().to_string(),
        "the text is not YAML that we read",
        "check the indentation and quotes here and on the line above",
    );
}

fn place_of(span: &Span) -> Place {
    let offset = span.start.byte_offset().unwrap_or(span.start.index());
    let end = span.end.byte_offset().unwrap_or(span.end.index());
    Place {
        line: count(span.start.line()),
        column: count(span.start.col()).saturating_add(1),
        offset,
        length: end.saturating_sub(offset),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

struct Refusal {
    place: Place,
    what: String,
    why: &'static str,
    help: &'static str,
}

/// A tree under construction.
struct Tree<'t> {
    open: Vec<Open<'t>>,
    root: Option<Node<'t>>,
    nodes: usize,
}

enum Open<'t> {
    List(Place, Vec<Node<'t>>),
    /// Entries so far, and the key that waits for its value.
    Map(Place, Vec<(Key<'t>, Node<'t>)>, Option<Key<'t>>),
}

impl<'t> Tree<'t> {
    fn take(&mut self, event: Event<'t>, place: Place) -> Result<(), Refusal> {
        refuse_indirection(&event, place)?;
        match event {
            Event::Scalar(text, style, _, _) => {
                if text.len() > MAX_SCALAR {
                    return Err(Refusal {
                        place,
                        what: format!("a value of {} bytes", text.len()),
                        why: "no field needs more than 64 KiB",
                        help: "shorten it",
                    });
                }
                let plain = style == ScalarStyle::Plain;
                let value = match (&*text, plain) {
                    ("" | "~" | "null" | "Null" | "NULL", true) => Value::Null,
                    _ => Value::Text { text, plain },
                };
                self.add(Node { place, value })
            }
            Event::SequenceStart(..) => {
                self.open.push(Open::List(place, Vec::new()));
                Ok(())
            }
            Event::MappingStart(..) => {
                self.open.push(Open::Map(place, Vec::new(), None));
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List(place, items)) => self.add(Node {
                    place,
                    value: Value::List(items),
                }),
                Some(Open::Map(place, entries, _)) => {
                    refuse_duplicates(&entries)?;
                    self.add(Node {
                        place,
                        value: Value::Map(entries),
                    })
                }
                None => Ok(()),
            },
            Event::DocumentStart(..) if self.root.is_some() => Err(Refusal {
                place,
                what: "a second document".to_owned(),
                why: "a file is one document, so that nothing hides behind a `---`",
                help: "remove the `---` and what follows it",
            }),
            _ => Ok(()),
        }
    }

    fn add(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Refusal {
                place: node.place,
                what: "too many values".to_owned(),
                why: "a file is bounded",
                help: "split it or remove what is not needed",
            });
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, items)) => items.push(node),
            Some(Open::Map(_, entries, waiting)) => match waiting.take() {
                Some(key) => entries.push((key, node)),
                None => *waiting = Some(key_of(node)?),
            },
        }
        Ok(())
    }
}

fn key_of(node: Node<'_>) -> Result<Key<'_>, Refusal> {
    let place = node.place;
    match node.value {
        Value::Text { text, plain: true } if text == "<<" => Err(Refusal {
            place,
            what: "a merge key `<<`".to_owned(),
            why: "a reviewer must see what a field says where it stands",
            help: "write the fields out",
        }),
        Value::Text { text, .. } => Ok(Key { place, text }),
        _ => Err(Refusal {
            place,
            what: "a key that is not text".to_owned(),
            why: "every field has a name",
            help: "write `name: value`",
        }),
    }
}

fn refuse_indirection(event: &Event<'_>, place: Place) -> Result<(), Refusal> {
    if event.is_alias() || event.anchor_id().is_some() {
        return Err(Refusal {
            place,
            what: "an anchor or alias".to_owned(),
            why: "a reviewer must see what a field says where it stands",
            help: "write the value out, or quote it if it is meant as text",
        });
    }
    match event.tag() {
        None => Ok(()),
        Some(tag) => Err(Refusal {
            place,
            what: format!("the tag `{}`", tag.original()),
            why: "each field has one type, so tags have no meaning here",
            help: "remove it, or quote the value if it is meant as text",
        }),
    }
}

/// The first key that was there before.
fn repeated<'e, 't>(entries: &'e [(Key<'t>, Node<'t>)]) -> Option<&'e Key<'t>> {
    if entries.len() <= 16 {
        let mut rest = entries;
        while let [(key, _), later @ ..] = rest {
            if let Some((again, _)) = later.iter().find(|(other, _)| other.text == key.text) {
                return Some(again);
            }
            rest = later;
        }
        return None;
    }
    let mut seen = HashSet::with_capacity(entries.len());
    let mut keys = entries.iter().map(|(key, _)| key);
    keys.find(|key| !seen.insert(&*key.text))
}

fn refuse_duplicates(entries: &[(Key<'_>, Node<'_>)]) -> Result<(), Refusal> {
    match repeated(entries) {
        None => Ok(()),
        Some(key) => Err(Refusal {
            place: key.place,
            what: format!("`{}` is given twice", key.text),
            why: "which of the two would hold is not visible",
            help: "keep one of them",
        }),
    }
}
