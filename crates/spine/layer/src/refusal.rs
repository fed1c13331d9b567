//! What is never merged, each with its path, its reason and what to do.
//!
//! A reason is a stable word for programs; the sentence is for people. Who
//! finds what: links and kinds in [`crate::judge`], names in [`crate::names`],
//! git in [`crate::git`].

use serde::Serialize;

use crate::path::TreePath;

/// One path that is not merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Where.
    pub path: TreePath,
    /// Why.
    pub reason: Reason,
    /// What exactly, if the path does not say it: a key, a target, a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Why a path is not merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A symbolic link that leads out of the project.
    LinkLeavesTree,
    /// A file that has a second name outside the layer.
    HardLinkOutside,
    /// A device, pipe or socket.
    SpecialFile,
    /// Setuid, setgid or sticky.
    SpecialMode,
    /// A hook of git.
    GitHook,
    /// A setting with which git runs something or goes elsewhere.
    GitConfig,
    /// A git configuration that cannot be read.
    GitConfigUnreadable,
    /// A file or link that says where a git directory is.
    GitPointer,
    /// A name that means `.git` on another file system.
    GitLookalike,
    /// A name that equals another one where case or accents do not count.
    NameCollision,
    /// A name that no rule could name: control characters, `\` or no text.
    UnspeakableName,
    /// A name that merges use for files on their way.
    ReservedName,
    /// A path that is too long or too deep.
    TooLong,
    /// A file that is too large.
    TooLarge,
    /// A file or directory that cannot be read.
    Unreadable,
}

impl Refusal {
    pub(crate) fn new(path: TreePath, reason: Reason) -> Self {
        Self {
            path,
            reason,
            detail: None,
        }
    }

    pub(crate) fn about(path: TreePath, reason: Reason, detail: impl Into<String>) -> Self {
        let detail: String = detail.into();
        Self {
            path,
            reason,
            detail: Some(detail.chars().take(200).collect()),
        }
    }
}

impl Reason {
    /// The stable word for programs.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::LinkLeavesTree => "link-leaves-tree",
            Self::HardLinkOutside => "hard-link-outside",
            Self::SpecialFile => "special-file",
            Self::SpecialMode => "special-mode",
            Self::GitHook => "git-hook",
            Self::GitConfig => "git-config",
            Self::GitConfigUnreadable => "git-config-unreadable",
            Self::GitPointer => "git-pointer",
            Self::GitLookalike => "git-lookalike",
            Self::NameCollision => "name-collision",
            Self::UnspeakableName => "unspeakable-name",
            Self::ReservedName => "reserved-name",
            Self::TooLong => "too-long",
            Self::TooLarge => "too-large",
            Self::Unreadable => "unreadable",
        }
    }

    /// What happened, for people.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::LinkLeavesTree => "the symbolic link leads out of the project",
            Self::HardLinkOutside => "the file has another name outside the layer",
            Self::SpecialFile => "devices, pipes and sockets are never merged",
            Self::SpecialMode => "setuid, setgid and sticky are never merged",
            Self::GitHook => "git would run this file by itself",
            Self::GitConfig => "the setting lets git run a program or go elsewhere",
            Self::GitConfigUnreadable => "the git configuration cannot be judged",
            Self::GitPointer => "it tells git to look for a repository elsewhere",
            Self::GitLookalike => "the name means `.git` on other file systems",
            Self::NameCollision => {
                "another name differs only in case, accents or invisible characters"
            }
            Self::UnspeakableName => "no rule can name this path",
            Self::ReservedName => "the name is kept for merges themselves",
            Self::TooLong => "the path is too long or too deep",
            Self::TooLarge => "the file is too large",
            Self::Unreadable => "it cannot be read",
        }
    }

    /// What a person can do about it.
    #[must_use]
    pub const fn fix(self) -> &'static str {
        match self {
            Self::LinkLeavesTree => "link to a path inside the project, or leave the link out",
            Self::HardLinkOutside => "copy the file in the sandbox, so that it has one name",
            Self::SpecialFile => "remove it in the sandbox, or leave it out",
            Self::SpecialMode => "take the mode back: chmod u-s,g-s,-t",
            Self::GitHook => "leave it out; install hooks yourself after reading them",
            Self::GitConfig => "leave the file out, or set it yourself: git config",
            Self::GitConfigUnreadable => "repair the file in the sandbox: git config --list",
            Self::GitPointer => "leave it out; add worktrees and submodules outside the sandbox",
            Self::GitLookalike
            | Self::NameCollision
            | Self::UnspeakableName
            | Self::ReservedName => "rename it in the sandbox",
            Self::TooLong => "move it nearer to the project's root",
            Self::TooLarge => "leave it out, or make it smaller",
            Self::Unreadable => "give its owner the right to read it: chmod u+rX",
        }
    }
}
