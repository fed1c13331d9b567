//! The little Markdown we need: fenced blocks, links, headings.
//!
//! Not a renderer. What it does not understand it leaves alone, except an
//! unclosed fence, which would hide the rest of a file.

/// A fenced block of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// The line of its opening fence, from 1.
    pub(crate) line: usize,
    /// The first word after the fence.
    pub(crate) language: String,
    /// The rest of the line after the language.
    pub(crate) attributes: String,
    /// What is between the fences.
    pub(crate) text: String,
}

impl Block {
    /// The value of `name=value` or `name="value"` after the language.
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        let key = format!("{name}=");
        let at = self.attributes.match_indices(&key).find(|(at, _)| {
            let before = self.attributes.get(..*at).unwrap_or_default();
            before.is_empty() || before.ends_with(char::is_whitespace)
        });
        let (at, _) = at?;
        let value = self.attributes.get(at + key.len()..)?;
        match value.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next(),
            None => value.split_whitespace().next(),
        }
    }
}

/// A file taken apart.
#[derive(Debug, Default)]
pub(crate) struct Document {
    /// Its fenced blocks.
    pub(crate) blocks: Vec<Block>,
    /// Its links and pictures, with their lines from 1.
    pub(crate) links: Vec<(usize, String)>,
    /// The names of its headings, as links spell them.
    pub(crate) anchors: Vec<String>,
}

impl Document {
    /// Takes a text apart; the error says where a fence is not closed.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut document = Self::default();
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            let number = index + 1;
            let Some(fence) = Fence::open(line) else {
                document.prose(number, line);
                continue;
            };
            let mut text = String::new();
            loop {
                let Some((_, line)) = lines.next() else {
                    return Err(format!("{number}: the block is never closed"));
                };
                if fence.closes(line) {
                    break;
                }
                text.push_str(fence.without_indent(line));
                text.push('\n');
            }
            let (language, attributes) = fence
                .info
                .split_once(char::is_whitespace)
                .unwrap_or((fence.info, ""));
            document.blocks.push(Block {
                line: number,
                language: language.to_owned(),
                attributes: attributes.trim().to_owned(),
                text,
            });
        }
        Ok(document)
    }

    fn prose(&mut self, number: usize, line: &str) {
        if let Some(heading) = line.strip_prefix('#') {
            let anchor = slug(heading.trim_start_matches('#'));
            let same = |known: &&String| {
                **known == anchor
                    || known
                        .strip_prefix(&format!("{anchor}-"))
                        .is_some_and(is_number)
            };
            let repeated = self.anchors.iter().filter(same).count();
            self.anchors.push(match repeated {
                0 => anchor,
                count => format!("{anchor}-{count}"),
            });
        }
        let line = without_code(line);
        for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
            for (at, _) in line.match_indices(opening) {
                let rest = line.get(at + opening.len()..).unwrap_or_default();
                let target = rest.split(closing).next().unwrap_or_default();
                let target = target.split_whitespace().next().unwrap_or_default();
                let target = target.trim_start_matches('<').trim_end_matches('>');
                self.links.push((number, target.to_owned()));
            }
        }
    }
}

/// The opening line of a block.
struct Fence<'a> {
    mark: char,
    length: usize,
    indent: usize,
    info: &'a str,
}

impl<'a> Fence<'a> {
    fn open(line: &'a str) -> Option<Self> {
        let body = line.trim_start();
        let mark = body.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let info = body.trim_start_matches(mark);
        let length = body.len() - info.len();
        (length >= 3 && !info.contains('`')).then_some(Self {
            mark,
            length,
            indent: line.len() - body.len(),
            info: info.trim(),
        })
    }

    fn closes(&self, line: &str) -> bool {
        let body = line.trim();
        body.len() >= self.length && body.chars().all(|c| c == self.mark)
    }

    fn without_indent<'l>(&self, line: &'l str) -> &'l str {
        let blank = line.len() - line.trim_start_matches(' ').len();
        line.get(blank.min(self.indent)..).unwrap_or(line)
    }
}

/// The line with what is between backticks blanked out.
fn without_code(line: &str) -> String {
    let parts = line.split('`').enumerate();
    let prose = parts.map(|(index, part)| if index % 2 == 0 { part } else { "code" });
    prose.collect()
}

/// A heading as links spell it.
fn slug(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ if c.is_alphanumeric() => Some(c),
            _ => None,
        })
        .flat_map(char::to_lowercase)
        .collect()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_attributes_and_lose_their_indent() {
        let text = "Intro\n\n```console exit=7 norun=\"needs a cloud\"\n$ a\n```\n\n\
                    1. step\n   ~~~sh\n   b\n     c\n   ~~~\n````md\n```sh\n````\n";
        let blocks = Document::parse(text).unwrap().blocks;
        assert_eq!(blocks.len(), 3);
        assert_eq!(
            (blocks[0].line, blocks[0].language.as_str()),
            (3, "console")
        );
        assert_eq!(blocks[0].attribute("exit"), Some("7"));
        assert_eq!(blocks[0].attribute("norun"), Some("needs a cloud"));
        assert_eq!(blocks[0].attribute("run"), None);
        assert_eq!(blocks[1].text, "b\n  c\n");
        assert_eq!(blocks[2].text, "```sh\n");
        assert!(Document::parse("a\n```sh\n").unwrap_err().starts_with("2:"));
    }

    #[test]
    fn links_outside_of_code_are_found() {
        let text = "See [a](docs/a.md#x \"title\") and ![p](<p.svg>), not `[b](b.md)`.\n\
                    <img src=\"q.png\">\n```\n[c](c.md)\n```\n";
        let links = Document::parse(text).unwrap().links;
        let wanted = [(1, "docs/a.md#x"), (1, "p.svg"), (2, "q.png")];
        assert_eq!(
            links,
            wanted.map(|(line, target)| (line, target.to_owned()))
        );
    }

    #[test]
    fn headings_become_anchors() {
        let text = "# What it's *for*\n## Two commands\n## Two commands\n```\n# not\n```\n";
        let anchors = Document::parse(text).unwrap().anchors;
        assert_eq!(anchors, ["what-its-for", "two-commands", "two-commands-1"]);
    }
}
