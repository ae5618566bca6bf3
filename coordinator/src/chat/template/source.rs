//! Template text before it is compiled: newlines as jinja2 reads them, `{% generation %}` in words minijinja knows.
//!
//! transformers adds a `generation` block to jinja2, which renders its body and keeps its assignments inside. A
//! `with` block does the same, so only the tag's name is exchanged and its white space control stays as written.

/// The text to compile: lone and paired carriage returns are newlines, generation tags are `with` tags.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(segment) = Segment::next(rest) {
        let text = &rest[..segment.end];
        match segment.tag {
            Some("generation") => out.push_str(&text.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&text.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(text),
        }
        rest = &rest[segment.end..];
    }
    out
}

/// The file that `source` includes, if an include is all it does.
pub(super) fn include_stub(source: &str) -> Option<String> {
    let mut found = None;
    let mut rest = source;
    while let Some(segment) = Segment::next(rest) {
        let text = &rest[..segment.end];
        rest = &rest[segment.end..];
        match segment.tag.and_then(|tag| tag.strip_prefix("include")) {
            Some(name) if found.is_none() => found = Some(unquote(name.trim())?.to_owned()),
            _ if segment.comment || text.trim().is_empty() => {}
            _ => return None,
        }
    }
    found
}

/// A stretch of template: plain text, a comment, an expression or a tag.
struct Segment<'a> {
    /// Length in bytes.
    end: usize,
    /// Inside of a tag, without white space control.
    tag: Option<&'a str>,
    comment: bool,
}

impl<'a> Segment<'a> {
    /// The first segment of `text`; none at the end.
    fn next(text: &'a str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let plain = |end| Self { end, tag: None, comment: false };
        let opener = ["{#", "{{", "{%"].into_iter().filter_map(|opener| text.find(opener)).min();
        Some(match opener {
            None => plain(text.len()),
            Some(0) if text.starts_with("{#") => {
                Self { end: text.find("#}").map_or(text.len(), |at| at + 2), tag: None, comment: true }
            }
            Some(0) if text.starts_with("{{") => plain(closing(text, "}}")),
            Some(0) => {
                let end = closing(text, "%}");
                let inside = &text[2..end];
                let inside = inside.strip_suffix("%}").unwrap_or(inside);
                let tag = inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
                let end = if tag == "raw" { end + raw_length(&text[end..]) } else { end };
                Self { end, tag: Some(tag), comment: false }
            }
            Some(at) => plain(at),
        })
    }
}

/// Where the `closer` of the block that opens `text` ends; brackets and quoted strings may contain it.
fn closing(text: &str, closer: &str) -> usize {
    let (mut quote, mut depth, mut escaped) = (None, 0_usize, false);
    for (at, c) in text.char_indices().skip(2) {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, _) if depth == 0 && text[at..].starts_with(closer) => return at + closer.len(),
            (None, '{' | '[' | '(') => depth += 1,
            (None, '}' | ']' | ')') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
    }
    text.len()
}

/// Bytes from the end of a raw tag to its endraw tag: nothing between them is a tag.
fn raw_length(text: &str) -> usize {
    let ends = |at: &usize| text[at + 2..].trim_start_matches(['-', '+']).trim_start().starts_with("endraw");
    text.match_indices("{%").map(|(at, _)| at).find(ends).unwrap_or(text.len())
}

fn unquote(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    text[1..].split(quote).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_keep_their_white_space_control() {
        for (source, expected) in [
            ("{%- generation -%}a{% endgeneration %}", "{%- with -%}a{% endwith %}"),
            ("{%generation%}a{%+ endgeneration -%}", "{%with%}a{%+ endwith -%}"),
            (
                "{# {% generation %} #}{{ '{% generation %}' }}",
                "{# {% generation %} #}{{ '{% generation %}' }}",
            ),
            (
                "{% raw %}{% generation %}{% endraw %}{% generation %}",
                "{% raw %}{% generation %}{% endraw %}{% with %}",
            ),
            ("{% if '%}' %}{% generation %}{% endif %}", "{% if '%}' %}{% with %}{% endif %}"),
            ("{{ {'a': {'b': 1}} }}{% generation %}", "{{ {'a': {'b': 1}} }}{% with %}"),
            ("a\r\nb\rc { % generation", "a\nb\nc { % generation"),
            ("{% set generation = 1 %}{{ generation", "{% set generation = 1 %}{{ generation"),
        ] {
            assert_eq!(prepare(source), expected);
        }
    }

    #[test]
    fn stubs_are_nothing_but_an_include() {
        for stub in [
            "{% include 'chat_template.jinja' %}",
            "\n{#- see -#}\n{%- include \"chat_template.jinja\" -%}\n",
        ] {
            assert_eq!(include_stub(stub).as_deref(), Some("chat_template.jinja"));
        }
        for not in ["", "x {% include 'a' %}", "{{ x }}{% include 'a' %}", "{% include a %}"] {
            assert_eq!(include_stub(not), None);
        }
    }
}
