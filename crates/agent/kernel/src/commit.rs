//! Committing what was merged: git in a sandbox and a layer of its own.
//!
//! The commit is made from plumbing only, so that nothing of the repository
//! runs, and holds exactly the given paths: what the person had staged or
//! changed elsewhere stays as it was. It gets into the repository as any other
//! merge does, and so survives a crash, and a commit made meanwhile is a
//! conflict, never overwritten.

use fluffy_base::Timestamp;
use fluffy_contract::isolation::Command;
use fluffy_gate::{Answer, AuthorizeError, Desk};
use fluffy_layer::{
    ApplyError, Body, CreateLayerError, Difference, FileDifference, HeldLayer, LayerKind,
    LayerStore, NodeKind, PlanError, ReadLayerError, TreePath, path::unescape,
};
use fluffy_policy::word::State;
use fluffy_policy::{Context, Permit, Refusal};
use serde::{Deserialize, Serialize};

use crate::git::{self, GitError};
use crate::hidden::Hidden;
use crate::merge;
use crate::workshop::{Booth, Mounts, OpenBoothError, Over, Workshop};

/// What is to be committed.
#[derive(Debug, Clone)]
pub struct Order {
    /// What the merge changed.
    pub entries: Vec<Entry>,
    /// The whole message.
    pub message: String,
    /// In whose name.
    pub author: Author,
    /// When.
    pub moment: Timestamp,
}

/// One changed path as an index names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    path: TreePath,
    content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Content {
    Gone,
    /// Where it points to, escaped.
    Link(String),
    File,
    Program,
}

impl Entry {
    /// The paths of a difference; directories and special files have none.
    #[must_use]
    pub fn all(difference: &Difference) -> Vec<Self> {
        difference.files.iter().filter_map(Self::of).collect()
    }

    fn of(file: &FileDifference) -> Option<Self> {
        let is_listed = |kind| matches!(kind, NodeKind::File | NodeKind::Symlink);
        let content = match (&file.change.after, &file.body) {
            (Some(shape), Body::Link { after, .. }) if shape.kind == NodeKind::Symlink => {
                Content::Link(after.clone()?)
            }
            (Some(shape), _) if shape.kind == NodeKind::File => match shape.mode & 0o100 {
                0 => Content::File,
                _ => Content::Program,
            },
            _ if file
                .change
                .before
                .is_some_and(|before| is_listed(before.kind)) =>
            {
                Content::Gone
            }
            _ => return None,
        };
        let path = file.change.path.clone();
        Some(Self { path, content })
    }
}

/// A name as git records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The name.
    pub name: String,
    /// The address.
    pub email: String,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    /// The commit's name.
    As(String),
    /// The paths are as they are in the newest commit.
    Nothing,
    /// The project is no repository.
    NoRepository,
}

/// Why there is no commit; the repository is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A decision could not be recorded.
    #[error(transparent)]
    NotRecorded(#[from] AuthorizeError),
    /// Policy does not allow it.
    #[error("policy does not allow the commit")]
    Refused(Box<Refusal>),
    /// There is no layer for it.
    #[error(transparent)]
    Layer(#[from] CreateLayerError),
    /// There is no sandbox for it.
    #[error(transparent)]
    Booth(#[from] OpenBoothError),
    /// Git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A command line holds only text.
    #[error("the name of `{path}` is no text, so it cannot be committed")]
    NotText {
        /// The path.
        path: TreePath,
    },
    /// Git printed something that is no commit's name.
    #[error("git printed something else than a name of an object")]
    Unexpected,
    /// What git wrote cannot be read.
    #[error(transparent)]
    Read(#[from] ReadLayerError),
    /// What git wrote cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The repository changed meanwhile, or git wrote something else.
    #[error("the repository changed while the commit was made: {paths}")]
    Conflict {
        /// Where.
        paths: String,
    },
    /// It could not be written into the repository.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// Who commits, and where.
#[derive(Debug)]
pub struct Committer<'a> {
    /// Sandboxes over the project.
    pub workshop: &'a Workshop,
    /// Where layers are.
    pub store: &'a LayerStore,
    /// How layers are made here.
    pub kind: LayerKind,
    /// What no command of the session may open.
    pub hidden: &'a Hidden,
    /// In whose name policy is asked.
    pub desk: &'a Desk,
    /// The session's circumstances.
    pub context: Context,
}

impl Committer<'_> {
    /// Commits the paths as they are in the project now.
    ///
    /// # Errors
    /// The repository is unchanged, unless it is [`CommitError::Apply`], which
    /// the layer crate resumes.
    pub async fn commit(&self, order: &Order) -> Result<Committed, CommitError> {
        // Two at once would both follow the same commit.
        let _alone = self.workshop.committing().await;
        let project = &self.workshop.premises().project;
        let created = self.permit(self.desk, "sandbox.create", self.template())?;
        let mut held = self.store.create(created, project, self.kind)?;
        let made = self.in_layer(&held, order).await;
        match made {
            Ok(Committed::As(name)) => {
                self.bring_in(&mut held)?;
                Ok(Committed::As(name))
            }
            other => {
                // Whatever git left there belongs to no commit.
                self.drop_layer(held);
                other
            }
        }
    }

    fn template(&self) -> Option<&str> {
        Some(&self.workshop.premises().template)
    }

    async fn in_layer(&self, held: &HeldLayer, order: &Order) -> Result<Committed, CommitError> {
        let permit = self.permit(self.desk, "sandbox.create", self.template())?;
        let over = Over {
            template: &self.workshop.premises().template,
            held,
            hidden: self.hidden,
            protected: Vec::new(),
        };
        let booth = self.workshop.open(permit, over).await?;
        let inside = Inside {
            committer: self,
            booth: &booth,
            desk: self.desk.inside(booth.id()),
        };
        let made = inside.make(order).await;
        booth.close().await;
        made
    }

    /// Merges what git wrote, if it is nothing but a repository's data.
    fn bring_in(&self, held: &mut HeldLayer) -> Result<(), CommitError> {
        let plan = held.plan_merge()?;
        let steps = plan.steps().iter().map(|step| &step.path);
        let elsewhere = steps.filter(|path| path.names().next() != Some(b".git".as_slice()));
        let conflicts = plan.conflicts().iter().map(|conflict| &conflict.path);
        let refusals = plan.refusals().iter().map(|refusal| &refusal.path);
        let wrong: Vec<String> = elsewhere
            .chain(conflicts)
            .chain(refusals)
            .take(5)
            .map(ToString::to_string)
            .collect();
        if !wrong.is_empty() {
            let paths = wrong.join(", ");
            return Err(CommitError::Conflict { paths });
        }
        let request = merge::whole(self.desk, &self.committing(), Some(0));
        let permit = match self.desk.ask(&request)? {
            Answer::Granted(granted) => granted.permit,
            Answer::Review(refusal) | Answer::Denied(refusal) => {
                return Err(CommitError::Refused(refusal));
            }
        };
        let report = held.apply(permit, &plan)?;
        if report.troubles.is_empty() {
            return Ok(());
        }
        let paths = report.troubles.iter().take(5);
        let paths: Vec<String> = paths.map(|trouble| trouble.path.to_string()).collect();
        Err(CommitError::Conflict {
            paths: paths.join(", "),
        })
    }

    fn drop_layer(&self, held: HeldLayer) {
        let id = held.layer().id().to_string();
        let permit = self.permit(self.desk, fluffy_layer::permit::DROP, Some(&id));
        if let Ok(permit) = permit {
            // Else it stays until somebody drops it; it changes nothing.
            let _ = self.store.drop_layer(permit, held);
        }
    }

    fn committing(&self) -> Context {
        Context {
            state: Some(State::Committing),
            ..self.context.clone()
        }
    }

    fn permit(
        &self,
        desk: &Desk,
        action: &str,
        resource: Option<&str>,
    ) -> Result<Permit, CommitError> {
        let request = desk.request(action, resource, &self.committing());
        match desk.ask(&request)? {
            Answer::Granted(granted) => Ok(granted.permit),
            Answer::Review(refusal) | Answer::Denied(refusal) => Err(CommitError::Refused(refusal)),
        }
    }
}

/// The calls of git that make one commit.
struct Inside<'a> {
    committer: &'a Committer<'a>,
    booth: &'a Booth,
    desk: Desk,
}

/// How often a call is made again that something ended.
const KILLED: u32 = 2;

/// An index apart from the person's own, in the sandbox's private memory.
const OWN_INDEX: &str = "/tmp/fluffy-index";

/// The same where the sandbox has a folder and no memory.
const IN_OWN_FOLDER: &str = r#"GIT_INDEX_FILE="$TMPDIR/fluffy-index" exec "$@""#;

impl Inside<'_> {
    async fn make(&self, order: &Order) -> Result<Committed, CommitError> {
        if self.found(&["rev-parse", "--git-dir"]).await?.is_none() {
            return Ok(Committed::NoRepository);
        }
        let parent = self.found(&["rev-parse", "--verify", "HEAD^{commit}"]);
        let parent = parent.await?.map(|text| name(&text)).transpose()?;
        let entries = self.entries(order).await?;
        let base = match &parent {
            Some(parent) => vec!["read-tree", parent.as_str()],
            None => vec!["read-tree", "--empty"],
        };
        self.own(&base, b"").await?;
        self.own(&["update-index", "-z", "--index-info"], &entries)
            .await?;
        let tree = name(&self.own(&["write-tree"], b"").await?)?;
        if let Some(parent) = &parent {
            let before = format!("{parent}^{{tree}}");
            let before = name(&self.git(&["rev-parse", &before], b"").await?)?;
            if before == tree {
                return Ok(Committed::Nothing);
            }
        }
        let commit = self.commit_tree(order, &tree, parent.as_deref()).await?;
        // The person's own index learns of these paths, and of nothing else.
        self.git(&["update-index", "-z", "--index-info"], &entries)
            .await?;
        let old = parent.as_deref().unwrap_or("");
        let update = ["update-ref", "-m", "commit: fluffy", "HEAD", &commit, old];
        self.git(&update, b"").await?;
        Ok(Committed::As(commit))
    }

    /// The paths as lines for an index: their modes and new objects, or that
    /// they are gone. Objects are written without filters.
    async fn entries(&self, order: &Order) -> Result<Vec<u8>, CommitError> {
        const GONE: &str = "0 0000000000000000000000000000000000000000";
        let mut lines = Vec::new();
        for Entry { path, content } in &order.entries {
            let head = match content {
                Content::Gone => GONE.to_owned(),
                Content::Link(target) => {
                    let target = unescape(target).unwrap_or_default();
                    let object = self.git(&["hash-object", "-w", "--stdin"], &target).await?;
                    format!("120000 {}", name(&object)?)
                }
                Content::File | Content::Program => {
                    let mode = match content {
                        Content::Program => "100755",
                        _ => "100644",
                    };
                    let Ok(path) = str::from_utf8(path.as_bytes()) else {
                        return Err(CommitError::NotText { path: path.clone() });
                    };
                    let words = ["hash-object", "-w", "--no-filters", "--", path];
                    format!("{mode} {}", name(&self.git(&words, b"").await?)?)
                }
            };
            lines.extend_from_slice(head.as_bytes());
            lines.push(b'\t');
            lines.extend_from_slice(path.as_bytes());
            lines.push(0);
        }
        Ok(lines)
    }

    async fn commit_tree(
        &self,
        order: &Order,
        tree: &str,
        parent: Option<&str>,
    ) -> Result<String, CommitError> {
        let mut words = vec!["commit-tree", tree];
        if let Some(parent) = parent {
            words.extend(["-p", parent]);
        }
        let mut command = git::command(&words);
        let moment = order.moment.to_string();
        let facts = [
            ("NAME", &order.author.name),
            ("EMAIL", &order.author.email),
            ("DATE", &moment),
        ];
        for who in ["AUTHOR", "COMMITTER"] {
            for (what, value) in facts {
                let variable = format!("GIT_{who}_{what}");
                command.environment.insert(variable, value.clone());
            }
        }
        name(&self.run(command, order.message.as_bytes()).await?)
    }

    /// What git finds; nothing only if it says itself that there is nothing.
    async fn found(&self, words: &[&str]) -> Result<Option<Vec<u8>>, CommitError> {
        match self.git(words, b"").await {
            Ok(found) => Ok(Some(found)),
            Err(CommitError::Git(GitError::Failed { code: Some(_), .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn git(&self, words: &[&str], input: &[u8]) -> Result<Vec<u8>, CommitError> {
        self.run(git::command(words), input).await
    }

    async fn own(&self, words: &[&str], input: &[u8]) -> Result<Vec<u8>, CommitError> {
        let mut command = git::command(words);
        match self.committer.workshop.premises().mounts {
            Mounts::Yes => {
                let index = ("GIT_INDEX_FILE".to_owned(), OWN_INDEX.to_owned());
                command.environment.extend([index]);
            }
            // No memory of its own: a folder that only the sandbox knows.
            Mounts::No => {
                let words = ["sh", "-c", IN_OWN_FOLDER, "sh"].map(str::to_owned);
                command.argv.splice(0..0, words);
            }
        }
        self.run(command, input).await
    }

    async fn run(&self, command: Command, input: &[u8]) -> Result<Vec<u8>, CommitError> {
        let mut again = KILLED;
        loop {
            let permit = self.committer.permit(&self.desk, "git.commit", None)?;
            match git::output(self.booth, permit, command.clone(), input).await {
                // Each step can be made twice, and whoever ended it did not
                // mean the commit.
                Err(GitError::Failed { code: None, .. }) if again > 0 => again -= 1,
                output => return Ok(output?),
            }
        }
    }
}

/// The name of an object, and nothing else.
fn name(printed: &[u8]) -> Result<String, CommitError> {
    let text = String::from_utf8_lossy(printed).trim().to_owned();
    let is_name =
        matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then_some(text).ok_or(CommitError::Unexpected)
}
