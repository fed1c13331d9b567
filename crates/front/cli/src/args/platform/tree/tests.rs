//! The commands and the operations cover each other.

use clap::CommandFactory as _;

use super::*;
use crate::args::Cli;

fn find<'a>(command: &'a Command, words: &[&str]) -> Option<&'a Command> {
    words
        .iter()
        .try_fold(command, |command, word| command.find_subcommand(word))
}

#[test]
fn every_operation_has_its_command_or_says_why_not() {
    let mut root = Cli::command();
    root.build();
    for operation in Operation::ALL {
        let cli = operation.spec().cli;
        if let Some(reason) = cli.strip_prefix("no:") {
            assert!(reason.trim().len() > 10, "{operation:?} has no reason");
            continue;
        }
        let words: Vec<&str> = cli.split(' ').collect();
        let command = find(&root, &words);
        let command = command.unwrap_or_else(|| panic!("there is no `fluffy {cli}`"));
        // What has more words below it may do something by itself all the same.
        assert!(
            !command.is_subcommand_required_set(),
            "`fluffy {cli}` does nothing by itself"
        );
    }
    // The control: a command that does not exist is not found.
    assert!(find(&root, &["apps", "nonsense"]).is_none());
}

#[test]
fn every_noun_leads_to_operations() {
    for (noun, _) in NOUNS {
        let is = |words: &str| words.split(' ').next() == Some(noun);
        let leads = derived().iter().any(|(words, _)| is(words))
            || EXTRA.iter().any(|(words, _, _)| is(words));
        assert!(leads, "{noun}");
    }
    for (words, _) in derived() {
        let noun = words.split(' ').next().unwrap();
        assert!(PlatformCommand::has_subcommand(noun), "{words}");
    }
}

#[test]
fn the_whole_tree_is_sound() {
    Cli::command().debug_assert();
}
