//! Changes what the package manager runs after an installation.
//!
//! The program would be `true`.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "post-install",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("runs code on the host at the user's next `npm install`")
.merged(&["package.json", ".npmrc"]);

fn attempt(_: &Stage) -> Outcome {
    let package = "{\n  \"name\": \"project\",\n  \"scripts\": {\"postinstall\": \"true\"}\n}\n";
    Outcome::best([
        look::create("package.json", package),
        look::create(".npmrc", "ignore-scripts=false\n"),
    ])
}
