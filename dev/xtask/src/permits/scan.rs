//! Finds the public functions of a crate in its source text.
//!
//! Follows `mod` from `lib.rs`, leaves out what is compiled for tests only.
//! Refuses what it cannot see through, such as items made by a macro, instead
//! of overlooking it. Never guesses about re-exports: all `pub` counts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use syn::{Attribute, FnArg, ImplItem, Item, Meta, Signature, TraitItem, Type, Visibility};

/// A public function, and whether it takes a permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    /// Its path inside the crate, such as `store::Store::open`.
    pub(super) name: String,
    /// Whether a parameter is a `Permit` by value.
    pub(super) takes_permit: bool,
}

/// Where file contents come from; tests make them up.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// All public functions of the crate with this `lib.rs`, sorted by name.
pub(super) fn scan_crate(entry: &Path, read: ReadFile<'_>) -> Result<Vec<Function>> {
    let folder = entry.parent().context("the entry has no folder")?;
    let mut scan = Scan {
        read,
        functions: Vec::new(),
    };
    let text = read(entry).with_context(|| format!("cannot read {}", entry.display()))?;
    scan.file(entry, &text, folder.to_owned(), "")?;
    scan.functions.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(scan.functions)
}

struct Scan<'a> {
    read: ReadFile<'a>,
    functions: Vec<Function>,
}

impl Scan<'_> {
    fn file(&mut self, path: &Path, text: &str, folder: PathBuf, prefix: &str) -> Result<()> {
        let file = syn::parse_file(text)
            .with_context(|| format!("{} is not Rust that can be read", path.display()))?;
        self.items(&file.items, &folder, prefix)
            .with_context(|| format!("in {}", path.display()))
    }

    fn items(&mut self, items: &[Item], folder: &Path, prefix: &str) -> Result<()> {
        for item in items {
            match item {
                Item::Fn(function) if is_public(&function.vis) && !for_tests(&function.attrs) => {
                    self.add(prefix, &function.sig);
                }
                Item::Impl(block) if block.trait_.is_none() && !for_tests(&block.attrs) => {
                    let owner = format!("{prefix}{}::", type_name(&block.self_ty)?);
                    self.methods(&block.items, &owner)?;
                }
                Item::Trait(definition)
                    if is_public(&definition.vis) && !for_tests(&definition.attrs) =>
                {
                    let owner = format!("{prefix}{}::", definition.ident);
                    self.trait_methods(&definition.items, &owner)?;
                }
                Item::Mod(module) if !for_tests(&module.attrs) => {
                    self.module(module, folder, prefix)?;
                }
                Item::Macro(invocation)
                    if invocation.ident.is_none() && !is_contract(&invocation.mac.path) =>
                {
                    bail!("a macro makes items here, which this check cannot see through");
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn methods(&mut self, items: &[ImplItem], owner: &str) -> Result<()> {
        for item in items {
            match item {
                ImplItem::Fn(method) if is_public(&method.vis) && !for_tests(&method.attrs) => {
                    self.add(owner, &method.sig);
                }
                ImplItem::Macro(_) => {
                    bail!("a macro makes methods of {owner}, which this check cannot see through");
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn trait_methods(&mut self, items: &[TraitItem], owner: &str) -> Result<()> {
        for item in items {
            match item {
                TraitItem::Fn(method) if !for_tests(&method.attrs) => self.add(owner, &method.sig),
                TraitItem::Macro(_) => {
                    bail!("a macro makes methods of {owner}, which this check cannot see through");
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn module(&mut self, module: &syn::ItemMod, folder: &Path, prefix: &str) -> Result<()> {
        let name = module.ident.to_string();
        let prefix = format!("{prefix}{name}::");
        let inner = folder.join(&name);
        if let Some((_, items)) = &module.content {
            return self.items(items, &inner, &prefix);
        }
        let is_skipped = |attr: &syn::Attribute| {
            let mut words = attr
                .path()
                .segments
                .iter()
                .map(|word| word.ident.to_string());
            words.next().is_some_and(|first| first == "rustfmt") && words.next().is_some()
        };
        if module.attrs.iter().any(is_skipped) {
            // Generated: it puts messages into bytes, over what it is given.
            return Ok(());
        }
        if module.attrs.iter().any(|attr| attr.path().is_ident("path")) {
            bail!("module {name} has a #[path], which this check does not follow");
        }
        let places = [folder.join(format!("{name}.rs")), inner.join("mod.rs")];
        for place in places {
            if let Some(text) = (self.read)(&place) {
                return self.file(&place, &text, inner, &prefix);
            }
        }
        bail!("cannot find the file of module {name}");
    }

    fn add(&mut self, owner: &str, signature: &Signature) {
        let takes_permit = signature.inputs.iter().any(|input| match input {
            FnArg::Typed(parameter) => is_permit(&parameter.ty),
            FnArg::Receiver(_) => false,
        });
        self.functions.push(Function {
            name: format!("{owner}{}", signature.ident),
            takes_permit,
        });
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether a macro turns a published contract into types: what it makes only
/// calls into a sandboxed guest, and stays private to its crate.
fn is_contract(path: &syn::Path) -> bool {
    let last = path.segments.last();
    last.is_some_and(|segment| segment.ident == "bindgen")
}

/// Whether an item has `#[cfg(test)]` or `#[test]`.
fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => {
            list.path.is_ident("cfg")
                && list
                    .parse_args::<syn::Path>()
                    .is_ok_and(|condition| condition.is_ident("test"))
        }
        Meta::NameValue(_) => false,
    })
}

/// Whether a type is `Permit` itself: not a reference, not inside another.
fn is_permit(kind: &Type) -> bool {
    match kind {
        Type::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|segment| segment.ident == "Permit"),
        _ => false,
    }
}

fn type_name(kind: &Type) -> Result<String> {
    match kind {
        Type::Path(path) => {
            let last = path.path.segments.last().context("a type has no name")?;
            Ok(last.ident.to_string())
        }
        _ => bail!("an impl block is for a type without a name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The functions of made-up files, each as `name` or `name + permit`.
    fn scan(files: &[(&str, &str)]) -> Result<Vec<String>> {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        };
        let functions = scan_crate(Path::new("src/lib.rs"), &read)?;
        let shown = |function: &Function| match function.takes_permit {
            true => format!("{} + permit", function.name),
            false => function.name.clone(),
        };
        Ok(functions.iter().map(shown).collect())
    }

    #[test]
    fn functions_methods_and_trait_methods_are_found() {
        let text = "
            pub fn read(path: &str) {}
            pub fn write(path: &str, permit: Permit) {}
            pub async fn send(permit: crate::Permit) {}
            pub(crate) fn inner() {}
            fn private() {}
            pub struct Store;
            impl Store {
                pub fn open() -> Self { Store }
                pub fn put(&self, permit: gate::Permit) {}
                fn hidden(&self) {}
            }
            impl Drop for Store { fn drop(&mut self) {} }
            pub trait Tool { fn run(&self, permit: Permit); fn name(&self) -> &str; }
            trait Inner { fn no(&self); }
        ";
        assert_eq!(
            scan(&[("src/lib.rs", text)]).unwrap(),
            [
                "Store::open",
                "Store::put + permit",
                "Tool::name",
                "Tool::run + permit",
                "read",
                "send + permit",
                "write + permit",
            ]
        );
    }

    #[test]
    fn a_borrowed_or_wrapped_permit_does_not_count() {
        let text = "
            pub fn a(permit: &Permit) {}
            pub fn b(permit: Option<Permit>) {}
            pub fn c(permit: &mut Permit) {}
            pub fn d(permit: PermitLike) {}
        ";
        assert_eq!(scan(&[("src/lib.rs", text)]).unwrap(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn modules_are_followed_and_tests_are_left_out() {
        let files = [
            (
                "src/lib.rs",
                "mod one; pub mod two; mod three { pub mod four; pub fn x() {} }
                 #[cfg(test)] mod tests;
                 #[cfg(test)] pub fn only_for_tests() {}
                 #[cfg(unix)] pub fn unix() {}",
            ),
            ("src/one.rs", "mod deep; pub fn a() {}"),
            ("src/one/deep.rs", "pub fn b() {}"),
            ("src/two/mod.rs", "pub fn c(permit: Permit) {}"),
            ("src/three/four.rs", "pub fn d() {}"),
        ];
        assert_eq!(
            scan(&files).unwrap(),
            [
                "one::a",
                "one::deep::b",
                "three::four::d",
                "three::x",
                "two::c + permit",
                "unix",
            ]
        );
    }

    #[test]
    fn what_cannot_be_seen_through_is_refused() {
        for text in [
            "thread_local! { static X: u8 = 0; }",
            "mod lost;",
            "#[path = \"x.rs\"] mod moved;",
            "struct S; impl S { methods!(); }",
            "pub trait T { methods!(); }",
            "fn broken(",
        ] {
            assert!(scan(&[("src/lib.rs", text)]).is_err(), "{text}");
        }
        assert!(scan(&[("src/lib.rs", "macro_rules! m { () => {} }")]).is_ok());
        let generated = "#[rustfmt::skip] #[path = \"x.rs\"] pub mod made;";
        assert!(scan(&[("src/lib.rs", generated)]).is_ok());
    }
}
