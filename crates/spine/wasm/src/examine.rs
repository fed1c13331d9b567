//! Looks at a program's shape before the compiler does.
//!
//! Compiling can't be interrupted, so what would make it long is refused
//! first: size, functions, the size of one function, and instances that
//! components multiply. Reads each section's head and allocates nothing that
//! grows with the input but the stack of open components. Whether the program
//! is valid is the compiler's question.

use fluffy_base::ByteSize;
use wasmparser::{ComponentInstance, Encoding, Instance, Parser, Payload};

use crate::limits::Bounds;

/// What kind of file a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A core module.
    Module,
    /// A component.
    Component,
}

/// Why a program is not even given to the compiler.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    /// More of something than is allowed.
    #[error("the program has {found} {what}, and {limit} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many it has, or at least this many.
        found: u64,
        /// How many it may have.
        limit: u64,
    },
    /// Something in it is larger than allowed.
    #[error("the program's {what} has {found}, and {limit} are allowed")]
    TooLarge {
        /// What.
        what: &'static str,
        /// How large it is.
        found: ByteSize,
        /// How large it may be.
        limit: ByteSize,
    },
    /// The bytes are no WebAssembly.
    #[error("the program is no WebAssembly at byte {offset}")]
    Malformed {
        /// Where.
        offset: usize,
        /// What is wrong there.
        #[source]
        source: wasmparser::BinaryReaderError,
    },
}

/// Says what the program is, or refuses it.
pub(crate) fn examine(bytes: &[u8], bounds: &Bounds) -> Result<Shape, ExamineError> {
    check_size("file", bytes.len(), bounds.size)?;
    let mut count = Count::default();
    let mut shape = None;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(malformed)?;
        if let Payload::Version { encoding, .. } = &payload {
            let first = match encoding {
                Encoding::Module => Shape::Module,
                Encoding::Component => Shape::Component,
            };
            shape.get_or_insert(first);
        }
        count.add(&payload, bounds)?;
    }
    // `parse_all` starts with the version or with an error.
    Ok(shape.unwrap_or(Shape::Module))
}

/// What was counted so far.
#[derive(Debug, Default)]
struct Count {
    functions: u64,
    /// One entry per module or component that is still open, inner ones last.
    open: Vec<Instances>,
    /// The most instances that one finished component makes.
    heaviest: u64,
}

/// What one component instantiates itself.
#[derive(Debug, Default)]
struct Instances {
    of_modules: u64,
    of_components: u64,
}

impl Count {
    fn add(&mut self, payload: &Payload<'_>, bounds: &Bounds) -> Result<(), ExamineError> {
        match payload {
            Payload::Version { .. } => self.open.push(Instances::default()),
            Payload::CodeSectionStart { count, .. } => {
                self.functions = self.functions.saturating_add(u64::from(*count));
                check_count("functions", self.functions, bounds.functions)?;
            }
            Payload::CodeSectionEntry(body) => {
                check_size("function", body.range().len(), bounds.function_size)?;
            }
            Payload::InstanceSection(section) => {
                for instance in section.clone() {
                    if let Instance::Instantiate { .. } = instance.map_err(malformed)? {
                        self.open_instances(|open| &mut open.of_modules, bounds)?;
                    }
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section.clone() {
                    if let ComponentInstance::Instantiate { .. } = instance.map_err(malformed)? {
                        self.open_instances(|open| &mut open.of_components, bounds)?;
                    }
                }
            }
            Payload::End(_) => self.close(bounds)?,
            // Heads of sections whose size the file's own size bounds.
            _ => {}
        }
        Ok(())
    }

    fn open_instances(
        &mut self,
        field: impl Fn(&mut Instances) -> &mut u64,
        bounds: &Bounds,
    ) -> Result<(), ExamineError> {
        let Some(open) = self.open.last_mut() else {
            return Ok(());
        };
        let count = field(open);
        *count = count.saturating_add(1);
        check_count("instances", *count, bounds.instances)
    }

    /// A component makes its own instances, and for each component it
    /// instantiates at most as many as the heaviest one before it. The bound is
    /// from above, so doubling again and again is seen without resolving names.
    fn close(&mut self, bounds: &Bounds) -> Result<(), ExamineError> {
        let closed = self.open.pop().unwrap_or_default();
        let inner = closed.of_components.saturating_mul(self.heaviest.max(1));
        let weight = closed.of_modules.saturating_add(inner);
        check_count("instances", weight, bounds.instances)?;
        self.heaviest = self.heaviest.max(weight);
        Ok(())
    }
}

fn check_count(what: &'static str, found: u64, limit: u32) -> Result<(), ExamineError> {
    let limit = u64::from(limit);
    match found > limit {
        true => Err(ExamineError::TooMany { what, found, limit }),
        false => Ok(()),
    }
}

fn check_size(what: &'static str, found: usize, limit: ByteSize) -> Result<(), ExamineError> {
    let found = ByteSize(u64::try_from(found).unwrap_or(u64::MAX));
    match found.0 > limit.0 {
        true => Err(ExamineError::TooLarge { what, found, limit }),
        false => Ok(()),
    }
}

fn malformed(source: wasmparser::BinaryReaderError) -> ExamineError {
    let offset = source.offset();
    ExamineError::Malformed { offset, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examine_text(text: &str, bounds: &Bounds) -> Result<Shape, ExamineError> {
        examine(&wat::parse_str(text).unwrap(), bounds)
    }

    #[test]
    fn modules_and_components_are_told_apart() {
        let bounds = Bounds::default();
        let module = examine_text("(module)", &bounds);
        assert_eq!(module.unwrap(), Shape::Module);
        let component = examine_text("(component (core module))", &bounds);
        assert_eq!(component.unwrap(), Shape::Component);
    }

    #[test]
    fn functions_of_all_modules_count() {
        let text = "(component (core module (func) (func)) (core module (func)))";
        let three = Bounds {
            functions: 3,
            ..Bounds::default()
        };
        assert!(examine_text(text, &three).is_ok());
        let two = Bounds {
            functions: 2,
            ..three
        };
        let refused = examine_text(text, &two);
        let what = "functions";
        assert!(
            matches!(refused, Err(ExamineError::TooMany { what: w, found: 3, limit: 2 }) if w == what)
        );
    }

    #[test]
    fn one_function_may_not_be_huge() {
        let body = "nop ".repeat(3000);
        let text = format!("(module (func {body}))");
        assert!(examine_text(&text, &Bounds::default()).is_ok());
        let small = Bounds {
            function_size: ByteSize(2000),
            ..Bounds::default()
        };
        let refused = examine_text(&text, &small);
        assert!(matches!(
            refused,
            Err(ExamineError::TooLarge {
                what: "function",
                ..
            })
        ));
    }

    /// Each level instantiates the one before it twice.
    fn doubling(levels: usize) -> String {
        let mut text =
            String::from("(component $c0 (core module $m) (core instance (instantiate $m)))");
        for level in 1..=levels {
            let below = level - 1;
            text = format!(
                "(component $c{level} {text} (instance (instantiate $c{below})) \
                 (instance (instantiate $c{below})))"
            );
        }
        text
    }

    #[test]
    fn components_that_double_are_counted_from_above() {
        assert!(examine_text(&doubling(4), &Bounds::default()).is_ok());
        let refused = examine_text(&doubling(30), &Bounds::default());
        assert!(matches!(
            refused,
            Err(ExamineError::TooMany {
                what: "instances",
                ..
            })
        ));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_get_an_answer(tail in proptest::collection::vec(0u8.., 0..200)) {
            let mut bytes = b"\0asm\x01\0\0\0".to_vec();
            bytes.extend(&tail);
            let _ = examine(&bytes, &Bounds::default());
            let _ = examine(&tail, &Bounds::default());
        }
    }
}
