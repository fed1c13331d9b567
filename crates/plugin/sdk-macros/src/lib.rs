//! The macros of `fluffy-plugin-sdk`: `#[tool]`, `Arguments`, `Choice`.
//!
//! They write what an author would write by hand, and nothing that could not
//! be. What they cannot read is a compile error at its place.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::ext::IdentExt as _;
use syn::{
    Attribute, Data, DataEnum, DeriveInput, Error, Expr, ExprLit, Fields, FnArg, Ident, ItemFn,
    Lit, Meta, parse_macro_input,
};

/// Makes a tool of a function: its name and the first paragraph of its
/// documentation are the tool's, its one argument derives `Arguments`.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, function: TokenStream) -> TokenStream {
    let function = parse_macro_input!(function as ItemFn);
    if let Some(option) = Tokens::from(options).into_iter().next() {
        let why = "`#[tool]` takes no options; effects are declared in plugin.yaml";
        return Error::new(option.span(), why).to_compile_error().into();
    }
    let made = tool_of(&function).unwrap_or_else(|error| error.to_compile_error());
    quote! { #function #made }.into()
}

/// The schema of a struct's fields, from their names, types and documentation,
/// and how they are read.
#[proc_macro_derive(Arguments)]
pub fn arguments(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let made = arguments_of(&input).unwrap_or_else(|error| error.to_compile_error());
    made.into()
}

/// One of the variants of an enum as an argument, written `in_snake_case`.
#[proc_macro_derive(Choice)]
pub fn choice(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let made = choice_of(&input).unwrap_or_else(|error| error.to_compile_error());
    made.into()
}

fn tool_of(function: &ItemFn) -> syn::Result<Tokens> {
    let name = &function.sig.ident;
    let told = name.unraw().to_string();
    let summary = summary(&function.attrs);
    if summary.is_empty() {
        let why = "a tool needs documentation: its first paragraph is what a model reads";
        return Err(Error::new(name.span(), why));
    }
    if !told.starts_with(|first: char| first.is_ascii_lowercase()) || told.len() > 64 {
        let why = "a tool is named `[a-z][a-z0-9_]{0,63}`";
        return Err(Error::new(name.span(), why));
    }
    let mut inputs = function.sig.inputs.iter();
    let (arguments, call) = match (inputs.next(), inputs.next()) {
        (None, _) => (quote! { () }, quote! { #name() }),
        (Some(FnArg::Typed(first)), None) => {
            let arguments = &first.ty;
            (quote! { #arguments }, quote! { #name(arguments) })
        }
        _ => {
            let why = "a tool takes one argument: a struct that derives `Arguments`";
            return Err(Error::new(name.span(), why));
        }
    };
    let visibility = &function.vis;
    Ok(quote! {
        #[doc(hidden)]
        #[allow(non_camel_case_types, missing_debug_implementations)]
        #visibility struct #name {}

        impl ::fluffy_plugin_sdk::Described for #name {
            const TOOL: ::fluffy_plugin_sdk::Tool =
                ::fluffy_plugin_sdk::Tool::new::<#arguments>(#told, #summary, |arguments| {
                    let arguments = ::fluffy_plugin_sdk::serde_json::Value::Object(arguments);
                    let arguments =
                        <#arguments as ::fluffy_plugin_sdk::Argument>::read(arguments)?;
                    let _ = &arguments;
                    ::core::result::Result::Ok(#call)
                });
        }
    })
}

fn arguments_of(input: &DeriveInput) -> syn::Result<Tokens> {
    let name = &input.ident;
    let refuse = || Error::new(name.span(), "arguments are a struct with named fields");
    let Data::Struct(data) = &input.data else {
        return Err(refuse());
    };
    let named = match &data.fields {
        Fields::Named(fields) => &fields.named,
        Fields::Unnamed(_) | Fields::Unit => return Err(refuse()),
    };
    if !input.generics.params.is_empty() {
        let why = "arguments have no parameters of their own";
        return Err(Error::new(name.span(), why));
    }
    let mut schema = Tokens::new();
    let mut read = Tokens::new();
    for field in named {
        let Some(ident) = &field.ident else {
            return Err(refuse());
        };
        let (told, of) = (ident.unraw().to_string(), &field.ty);
        let mut description = documentation(&field.attrs);
        description.retain(|line| !line.is_empty());
        let description = description.join(" ");
        schema.extend(quote! { .field::<#of>(#told, #description) });
        read.extend(quote! { #ident: fields.take(#told)?, });
    }
    Ok(quote! {
        impl ::fluffy_plugin_sdk::Argument for #name {
            fn schema() -> ::fluffy_plugin_sdk::serde_json::Value {
                <::fluffy_plugin_sdk::SchemaOf as ::core::default::Default>::default()
                    #schema
                    .done()
            }

            fn read(
                value: ::fluffy_plugin_sdk::serde_json::Value,
            ) -> ::core::result::Result<Self, ::std::string::String> {
                let mut fields = ::fluffy_plugin_sdk::Fields::of(value)?;
                let read = Self { #read };
                fields.done()?;
                ::core::result::Result::Ok(read)
            }
        }

        impl ::fluffy_plugin_sdk::Arguments for #name {}
    })
}

fn choice_of(input: &DeriveInput) -> syn::Result<Tokens> {
    let name = &input.ident;
    let refuse = || Error::new(name.span(), "a choice is an enum of plain variants");
    let Data::Enum(DataEnum { variants, .. }) = &input.data else {
        return Err(refuse());
    };
    if variants.is_empty() || variants.iter().any(|one| !one.fields.is_empty()) {
        return Err(refuse());
    }
    let words: Vec<String> = variants.iter().map(|one| snake_case(&one.ident)).collect();
    let arms = variants.iter().enumerate().map(|(place, variant)| {
        let ident = &variant.ident;
        // The last one takes the rest, of which there is none.
        match place + 1 == variants.len() {
            true => quote! { _ => Self::#ident, },
            false => quote! { #place => Self::#ident, },
        }
    });
    Ok(quote! {
        impl ::fluffy_plugin_sdk::Argument for #name {
            fn schema() -> ::fluffy_plugin_sdk::serde_json::Value {
                ::fluffy_plugin_sdk::serde_json::json!({ "type": "string", "enum": [#(#words),*] })
            }

            fn read(
                value: ::fluffy_plugin_sdk::serde_json::Value,
            ) -> ::core::result::Result<Self, ::std::string::String> {
                let place = ::fluffy_plugin_sdk::choice_of(&[#(#words),*], &value)?;
                ::core::result::Result::Ok(match place { #(#arms)* })
            }
        }
    })
}

/// `VeryLarge` as `very_large`.
fn snake_case(ident: &Ident) -> String {
    let mut word = String::new();
    for letter in ident.unraw().to_string().chars() {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.extend(letter.to_lowercase());
    }
    word
}

/// The first paragraph of a documentation, in one line.
fn summary(attributes: &[Attribute]) -> String {
    let lines = documentation(attributes);
    let first = lines.split(String::is_empty).next().unwrap_or_default();
    first.join(" ")
}

/// The lines of a documentation.
fn documentation(attributes: &[Attribute]) -> Vec<String> {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        let Expr::Lit(ExprLit { lit, .. }) = &pair.value else {
            return None;
        };
        match lit {
            Lit::Str(text) if pair.path.is_ident("doc") => Some(text.value()),
            _ => None,
        }
    });
    let lines: Vec<String> = lines.collect();
    let lines = lines.iter().flat_map(|text| text.split('\n'));
    lines.map(|line| line.trim().to_owned()).collect()
}
