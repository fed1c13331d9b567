//! Templates that a policy adds to the built-in ones.
//!
//! Each is based on a built-in template and says only what differs. Pure data:
//! what a template means is known to the sandbox, which also refuses a base
//! that does not exist. Next: `document` reads the file around it.

use fluffy_base::{ByteSize, Span};

use crate::reader::Reader;
use crate::word::{Network, Tier};
use crate::yaml::Node;

pub(crate) const TEMPLATE_FIELDS: &[&str] = &[
    "based_on", "tier", "network", "memory", "cpu", "pids", "time", "disk",
];

/// The templates that always exist and cannot be redefined.
pub const BUILTIN_TEMPLATES: &[&str] = &[
    "kernel",
    "ai-provider",
    "code-executor",
    "policy-sandbox",
    "integration-test",
];

/// A template as a policy writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedTemplate {
    /// What it is called.
    pub name: String,
    /// The built-in template it starts from.
    pub based_on: String,
    /// The weakest tier it accepts.
    pub tier: Option<Tier>,
    /// What it can reach.
    pub network: Option<Network>,
    /// Memory of all its processes.
    pub memory: Option<ByteSize>,
    /// Thousandths of a processor.
    pub cpu_milli: Option<u32>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// How long it may run.
    pub time: Option<Span>,
    /// What it may write to its layer.
    pub disk: Option<ByteSize>,
}

/// Reads `templates`; `None` if anything in it is unusable.
pub(crate) fn read(reader: &mut Reader, node: &Node<'_>) -> Option<Vec<AddedTemplate>> {
    let entries = reader.entries(node, "`templates`")?;
    let mut templates = Vec::new();
    for (key, node) in entries.iter() {
        if !is_name(&key.text) || BUILTIN_TEMPLATES.contains(&key.text.as_ref()) {
            reader.findings.error(
                key.place,
                "this cannot be the name of a template",
                "names are lower-case letters, digits and `-`, and the built-in ones are taken",
                "choose another name",
            );
            return None;
        }
        templates.push(read_one(reader, &key.text, node)?);
    }
    Some(templates)
}

fn is_name(text: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.len() <= 64 && text.chars().all(word) && !text.starts_with('-')
}

fn read_one(reader: &mut Reader, name: &str, node: &Node<'_>) -> Option<AddedTemplate> {
    let fields = reader.fields(node, "a template", TEMPLATE_FIELDS)?;
    let Some(base) = fields.get("based_on") else {
        let help = "start from a built-in one: `based_on: code-executor`";
        reader.missing(fields.place, "a template", "based_on", help);
        return None;
    };
    let base = reader.text(base, "`based_on`")?;
    if !BUILTIN_TEMPLATES.contains(&base.text) {
        reader.findings.error(
            base.place,
            "there is no such built-in template",
            "a template starts from one whose limits are known",
            "use one of kernel, ai-provider, code-executor, policy-sandbox, integration-test",
        );
        return None;
    }
    let mut template = AddedTemplate {
        name: name.to_owned(),
        based_on: base.text.to_owned(),
        tier: None,
        network: None,
        memory: None,
        cpu_milli: None,
        pids: None,
        time: None,
        disk: None,
    };
    for (key, node) in fields.iter() {
        match key.text.as_ref() {
            "tier" => {
                let word = reader.text(node, "`tier`")?;
                template.tier = Some(reader.word(word)?);
            }
            "network" => {
                let word = reader.text(node, "`network`")?;
                template.network = Some(reader.word(word)?);
            }
            "memory" => template.memory = Some(ByteSize(reader.size(node, "`memory`")?)),
            "disk" => template.disk = Some(ByteSize(reader.size(node, "`disk`")?)),
            "pids" => template.pids = Some(reader.positive(node, "`pids`")?),
            "cpu" => template.cpu_milli = Some(reader.processors(node, "`cpu`")?),
            "time" => template.time = Some(reader.span(node, "`time`")?),
            _ => {}
        }
    }
    Some(template)
}

#[cfg(test)]
mod tests {
    use crate::document::PolicyFile;
    use crate::rule::Origin;
    use crate::word::{Network, Tier};

    fn parse(text: &str, origin: Origin) -> Result<PolicyFile, String> {
        PolicyFile::parse(&format!("version: 1\ntemplates:\n{text}"), origin)
            .map_err(|refused| refused.to_string())
    }

    #[test]
    fn a_template_says_what_differs() {
        let file = parse(
            "  heavy: { based_on: integration-test, memory: 8GiB, cpu: 1.5, pids: 2000, time: 20m, disk: 1GiB, network: none, tier: container }\n",
            Origin::Project,
        )
        .unwrap();
        let [heavy] = file.templates() else {
            panic!("one template")
        };
        assert_eq!(heavy.name, "heavy");
        assert_eq!(heavy.memory.map(|size| size.0), Some(8 << 30));
        assert_eq!(heavy.cpu_milli, Some(1_500));
        assert_eq!(heavy.pids, Some(2_000));
        assert_eq!(heavy.time.map(|span| span.millis), Some(1_200_000));
        assert_eq!(heavy.network, Some(Network::None));
        assert_eq!(heavy.tier, Some(Tier::Container));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "  kernel: { based_on: kernel }\n",
            "  Heavy: { based_on: kernel }\n",
            "  -x: { based_on: kernel }\n",
            "  x: { memory: 1GiB }\n",
            "  x: { based_on: y }\n",
            "  x: { based_on: kernel, memory: 1gb }\n",
            "  x: { based_on: kernel, cpu: 0 }\n",
            "  x: { based_on: kernel, cpu: 1.2345 }\n",
            "  x: { based_on: kernel, pids: 0 }\n",
            "  x: { based_on: kernel, time: 5 minutes }\n",
            "  x: { based_on: kernel, network: open }\n",
            "  x: { based_on: kernel, seccomp: none }\n",
        ] {
            assert!(parse(text, Origin::Project).is_err(), "{text}");
        }
        let fine = "  x: { based_on: kernel }\n";
        assert!(parse(fine, Origin::User).is_ok());
        assert!(parse(fine, Origin::Organisation).is_err());
    }
}
