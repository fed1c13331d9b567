//! A file without its types, so that two versions can be compared.
//!
//! Python is read here, by tokens and without recursion. The parser of
//! TypeScript is not made for hostile text, so it runs in a sandbox, with the
//! text as its only input. What cannot be stripped is `None`, with the reason.

use fluffy_base::ByteSize;
use fluffy_contract::isolation::{Command, Exit};
use fluffy_contract::tool::Need;
use fluffy_workflow::exemption::python;

use super::{RouteError, Router};
use crate::workshop::Booth;

/// The words that make our own executable remove the types of a text.
const STRIP_TYPES: [&str; 2] = ["worker", "strip-types"];

/// The most that is printed: code grows a little when it is printed anew.
const MAX_PRINTED: u64 = 8 << 20;

/// For what the sandbox is opened.
const TOOL: &str = "test.run";

/// A text without its types, or why there is none.
pub(crate) type Untyped = Result<String, String>;

impl Router<'_> {
    /// Each of these texts without its types; the first is a file's name.
    pub(crate) async fn without_types(
        &self,
        texts: &[(&str, &str)],
    ) -> Result<Vec<Untyped>, RouteError> {
        let booth = match texts.iter().any(|(name, _)| is_typescript(name)) {
            true => Some(
                self.open(TOOL, self.course.protected(self.workshop))
                    .await?,
            ),
            false => None,
        };
        let mut found = Vec::new();
        for (name, text) in texts {
            let untyped = match &booth {
                Some(booth) if is_typescript(name) => self.typescript(booth, name, text).await,
                Some(_) | None => Ok(of_python(name, text)),
            };
            match untyped {
                Ok(untyped) => found.push(untyped),
                Err(error) => {
                    if let Some(booth) = booth {
                        booth.close().await;
                    }
                    return Err(error);
                }
            }
        }
        if let Some(booth) = booth {
            booth.close().await;
        }
        Ok(found)
    }

    async fn typescript(
        &self,
        booth: &Booth,
        name: &str,
        text: &str,
    ) -> Result<Untyped, RouteError> {
        let own = match std::env::current_exe() {
            Ok(own) => own.to_string_lossy().into_owned(),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let words = std::iter::once(own).chain(STRIP_TYPES.map(str::to_owned));
        let command = Command {
            output: Some(ByteSize(MAX_PRINTED)),
            ..Command::new(words.chain([name.to_owned()]))
        };
        let need = Need {
            action: TOOL.to_owned(),
            resource: None,
        };
        let desk = self.desk.inside(booth.id());
        let permit = self.permit(&desk, TOOL, &need).await?;
        Ok(match booth.run(permit, command, text.as_bytes()).await {
            Ok(finished) => match finished.exit {
                Exit::Code { code: 0 } => {
                    String::from_utf8(finished.stdout).map_err(|error| error.to_string())
                }
                Exit::Code { .. } => Err(String::from_utf8_lossy(&finished.stderr).into_owned()),
                _ => Err("the parser could not take it".to_owned()),
            },
            Err(error) => Err(error.to_string()),
        })
    }
}

fn is_typescript(name: &str) -> bool {
    let endings = [".ts", ".tsx", ".mts", ".cts"];
    endings.iter().any(|ending| name.ends_with(ending))
}

fn of_python(name: &str, text: &str) -> Untyped {
    // What is in a stub never runs.
    if name.ends_with(".pyi") {
        return Ok(String::new());
    }
    let stripped = name.ends_with(".py").then(|| python::without_types(text));
    let unsure = "it cannot be told for certain what of it are types only";
    stripped.flatten().ok_or_else(|| unsure.to_owned())
}
