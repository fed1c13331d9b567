//! Whether a change that was exempted as one of types is nothing else.

use std::collections::BTreeMap;

use fluffy_policy::word::Category;
use fluffy_workflow::evidence::ChangedFile;
use fluffy_workflow::exemption::Stripped;

use super::{Agent, DriveError};
use crate::event::AgentEvent;
use crate::router::RouteError;

impl Agent {
    /// Both versions of each changed file without their types; nothing unless
    /// the task is exempt as a change of types.
    pub(super) async fn stripped(
        &self,
        changed: &[ChangedFile<'_>],
    ) -> Result<BTreeMap<String, Stripped>, DriveError> {
        let exemption = self.session.workflow.exemption();
        let of_types = |category| category == Category::TypeRefactor;
        let Some(exemption) = exemption.filter(|one| of_types(one.category())) else {
            return Ok(BTreeMap::new());
        };
        // A file with the same text differs in its mode or kind, which is no
        // type; one that is new or gone has nothing to be compared with.
        let pairs: Vec<(&str, &str, &str)> = changed
            .iter()
            .filter(|file| exemption.covers(file.path) && file.before != file.after)
            .filter_map(|file| Some((file.path, file.before?, file.after?)))
            .collect();
        let texts: Vec<(&str, &str)> = pairs
            .iter()
            .flat_map(|(path, before, after)| [(*path, *before), (*path, *after)])
            .collect();
        let course = self.course();
        let untyped = match self.router(&course).without_types(&texts).await {
            Ok(untyped) => untyped,
            Err(RouteError::NotRecorded(error)) => return Err(DriveError::Route(error)),
            // What was not compared is not exempt.
            Err(RouteError::Refused(_)) => return Ok(BTreeMap::new()),
        };
        let mut found = BTreeMap::new();
        for ((path, ..), both) in pairs.iter().zip(untyped.chunks(2)) {
            if let Some(why) = both.iter().find_map(|one| one.as_ref().err()) {
                let text = format!("`{path}` is not compared without its types: {}", why.trim());
                self.publish(AgentEvent::Note { text });
            }
            let mut texts = both.iter().map(|one| one.as_ref().ok().cloned());
            let stripped = Stripped {
                before: texts.next().flatten(),
                after: texts.next().flatten(),
            };
            found.insert((*path).to_owned(), stripped);
        }
        Ok(found)
    }
}
