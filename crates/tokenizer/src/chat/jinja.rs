//! The Jinja environment of chat templates: Python's habits, and limits.

use crate::error::TokenizerError;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, filters, functions, tests as jinja_tests};
use std::io;

/// Model families ship templates of a few kilobytes.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Instructions plus a share of the data touched, see [`Environment::set_fuel`]. A conversation of
/// 2,000 messages of 1 KB takes 125,000 to 290,000, depending on the template.
const FUEL: u64 = 5_000_000;
/// Far beyond every context length.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// JSON nested deeper than this is refused.
const MAX_JSON_DEPTH: usize = 128;
/// Blanks per level that `tojson(indent=...)` accepts at most.
const MAX_JSON_INDENT: usize = 16;

const NAME: &str = "chat";

/// A compiled template.
#[derive(Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
}

impl Template {
    pub fn new(source: &str) -> Result<Self, TokenizerError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TokenizerError::TemplateTooLong { actual: source.len(), limit: MAX_TEMPLATE_BYTES });
        }
        let syntax_error = |error: Error| TokenizerError::TemplateSyntax { detail: error.to_string() };
        let mut environment = Environment::empty();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(syntax_error)?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        add_vocabulary(&mut environment);
        environment.add_template_owned(NAME, source.to_owned()).map_err(syntax_error)?;
        Ok(Self { environment })
    }

    pub fn render(&self, context: &serde_json::Value) -> Result<String, TokenizerError> {
        let mut output = LimitedOutput { bytes: Vec::new(), is_full: false };
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(to_value(context), &mut output).map(|_| ()));
        match rendered {
            Err(_) if output.is_full => {
                Err(TokenizerError::TemplateOutputTooLong { limit: MAX_OUTPUT_BYTES })
            }
            Err(error) => Err(typed(&error)),
            Ok(()) => String::from_utf8(output.bytes)
                .map_err(|error| TokenizerError::TemplateFailed { detail: error.to_string() }),
        }
    }
}

/// The filters, tests and functions that chat templates use. The engine has many more; leaving them out
/// leaves them out of the wasm, and a template that asks for one fails with its name.
fn add_vocabulary(environment: &mut Environment<'static>) {
    environment.add_filter("capitalize", filters::capitalize);
    environment.add_filter("count", filters::length);
    environment.add_filter("d", filters::default);
    environment.add_filter("default", filters::default);
    environment.add_filter("first", filters::first);
    environment.add_filter("int", filters::int);
    environment.add_filter("items", filters::items);
    environment.add_filter("join", filters::join);
    environment.add_filter("last", filters::last);
    environment.add_filter("length", filters::length);
    environment.add_filter("list", filters::list);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("map", filters::map);
    environment.add_filter("rejectattr", filters::rejectattr);
    environment.add_filter("replace", filters::replace);
    environment.add_filter("reverse", filters::reverse);
    environment.add_filter("safe", filters::safe);
    environment.add_filter("selectattr", filters::selectattr);
    environment.add_filter("string", filters::string);
    environment.add_filter("title", filters::title);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("upper", filters::upper);

    environment.add_test("boolean", jinja_tests::is_boolean);
    environment.add_test("defined", jinja_tests::is_defined);
    environment.add_test("eq", jinja_tests::is_eq);
    environment.add_test("equalto", jinja_tests::is_eq);
    environment.add_test("==", jinja_tests::is_eq);
    environment.add_test("false", jinja_tests::is_false);
    environment.add_test("in", jinja_tests::is_in);
    environment.add_test("integer", jinja_tests::is_integer);
    environment.add_test("iterable", jinja_tests::is_iterable);
    environment.add_test("mapping", jinja_tests::is_mapping);
    environment.add_test("ne", jinja_tests::is_ne);
    environment.add_test("none", jinja_tests::is_none);
    environment.add_test("number", jinja_tests::is_number);
    environment.add_test("sequence", is_sequence);
    environment.add_test("string", jinja_tests::is_string);
    environment.add_test("true", jinja_tests::is_true);
    environment.add_test("undefined", jinja_tests::is_undefined);

    environment.add_function("namespace", functions::namespace);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("range", functions::range);
}

/// JSON data as a template sees it, objects in their order.
fn to_value(data: &serde_json::Value) -> Value {
    match data {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => Value::from(number),
            (None, Some(number), _) => Value::from(number),
            (None, None, number) => Value::from(number.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(to_value).collect(),
        serde_json::Value::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(key, value)| (key.as_str(), to_value(value))))
        }
    }
}

/// Collects the output up to the limit.
struct LimitedOutput {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a template passed to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn typed(error: &Error) -> TokenizerError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TokenizerError::TemplateRaised { message: message.clone() };
        }
        source = cause.source();
    }
    let detail = error.to_string();
    let recursion = error.detail().is_some_and(|detail| detail.contains("recursion limit"));
    if error.kind() == ErrorKind::OutOfFuel || recursion {
        TokenizerError::TemplateBudget { detail }
    } else {
        TokenizerError::TemplateFailed { detail }
    }
}

/// Jinja's `sequence` test means "has a length and can be indexed", so strings and mappings pass.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`: key order kept, `", "` and `": "`
/// between items, nothing escaped for HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson with ensure_ascii is not supported"));
    }
    options.assert_all_used()?;
    let mut writer = JsonWriter { out: String::new(), indent: indent.map(|n| n.min(MAX_JSON_INDENT)) };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// The shortest digits, with an exponent from 1e16 up and below 1e-4, as `repr` in Python writes them.
fn python_float(number: f64) -> String {
    if number == 0.0 || (1e-4..1e16).contains(&number.abs()) {
        return format!("{number:?}");
    }
    let scientific = format!("{number:e}");
    match scientific.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        // Python's JSON has the words NaN, Infinity and -Infinity.
        None => scientific.replace("inf", "Infinity"),
    }
}

struct JsonWriter {
    out: String,
    indent: Option<usize>,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_JSON_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "the value nests too deep for tojson"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&python_float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let mut is_empty = true;
                self.out.push('[');
                for item in value.try_iter()? {
                    self.separate(is_empty, depth + 1);
                    is_empty = false;
                    self.value(&item, depth + 1)?;
                }
                self.close(']', is_empty, depth);
            }
            ValueKind::Map => {
                let mut is_empty = true;
                self.out.push('{');
                for key in value.try_iter()? {
                    self.separate(is_empty, depth + 1);
                    is_empty = false;
                    self.string(&key.to_string())?;
                    self.out.push_str(": ");
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.close('}', is_empty, depth);
            }
            kind => {
                let detail = format!("{kind} has no form in JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        let quoted = serde_json::to_string(text)
            .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
        self.out.push_str(&quoted);
        Ok(())
    }

    fn separate(&mut self, is_first: bool, depth: usize) {
        match self.indent {
            None if !is_first => self.out.push_str(", "),
            None => {}
            Some(_) => {
                if !is_first {
                    self.out.push(',');
                }
                self.new_line(depth);
            }
        }
    }

    fn close(&mut self, bracket: char, is_empty: bool, depth: usize) {
        if !is_empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, context: serde_json::Value) -> Result<String, TokenizerError> {
        Template::new(source)?.render(&context)
    }

    #[test]
    fn behaves_like_jinja_in_python() {
        // The expected texts are what Jinja 3 gives with trim_blocks and lstrip_blocks.
        let cases = [
            (
                "{{ a | tojson }}",
                json!({"a": {"z": 1, "b": [true, null, 1.5, "é<'&\n\u{1}"]}}),
                "{\"z\": 1, \"b\": [true, null, 1.5, \"é<'&\\n\\u0001\"]}",
            ),
            ("{{ a | tojson }}", json!({"a": [{}, []]}), "[{}, []]"),
            (
                "{{ a | tojson(indent=2) }}",
                json!({"a": {"x": [1, 2], "y": {}}}),
                "{\n  \"x\": [\n    1,\n    2\n  ],\n  \"y\": {}\n}",
            ),
            ("{{ a | tojson(ensure_ascii=false) }}", json!({"a": 1.0}), "1.0"),
            (
                "{{ a | string }} {{ b | string }} {{ c | string }} {{ d | string }}",
                json!({"a": true, "b": false, "c": null, "d": 2}),
                "True False None 2",
            ),
            ("{{ 'x' ~ a ~ none }}", json!({"a": true}), "xTrueNone"),
            (
                "{{ a.split('b')[0].rstrip('\\n') }}|{{ a.split('b')[-1].lstrip('\\n').strip() }}",
                json!({"a": "x\n\nb\n y "}),
                "x|y",
            ),
            ("{{ a.startswith('x') }} {{ a.endswith('x') }}", json!({"a": "xy"}), "True False"),
            (
                "{% for x in a[::-1] %}{{ x }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }};{% endfor %}",
                json!({"a": [1, 2]}),
                "20TrueFalse;11FalseTrue;",
            ),
            (
                "{% for x in a %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
                json!({"a": [1, 2]}),
                "<1>2 1<2> ",
            ),
            (
                "{% set ns = namespace(n=0) %}{% for x in a %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
                json!({"a": [1, 2]}),
                "3",
            ),
            ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(a) }}", json!({"a": "<b>"}), "[<b>]"),
            (
                "{{ a is string }} {{ a is mapping }} {{ b is mapping }} {{ b is iterable }} {{ b is sequence }} {{ c is defined }} {{ c is undefined }} {{ n is none }} {{ t is true }} {{ t is false }}",
                json!({"a": "", "b": {}, "n": null, "t": true}),
                "True False True True True False True True True False",
            ),
            (
                "{{ a is sequence }} {{ a is iterable }} {{ b is sequence }} {{ b is iterable }} {{ c is sequence }} {{ c is iterable }}",
                json!({"a": "", "b": [], "c": 1}),
                "True True True True False False",
            ),
            (
                "{{ a | tojson }}",
                json!({"a": [1e16, 1e-7, 0.0, 0.0001, 1.25, 1e15, -2.5e-10, 1e300, u64::MAX]}),
                "[1e+16, 1e-07, 0.0, 0.0001, 1.25, 1000000000000000.0, -2.5e-10, 1e+300, 18446744073709551615]",
            ),
            ("a\n", json!({}), "a"),
            (
                "{{ (a | selectattr('r', 'equalto', 'u') | list)[0].c }} {{ a | map(attribute='c') | join('-') }} {{ (a | last).r }}",
                json!({"a": [{"r": "s", "c": "1"}, {"r": "u", "c": "2"}]}),
                "2 1-2 u",
            ),
            (
                "{{ x | default('y') }} {{ range(3) | list | length }} {{ 'a' in b }}",
                json!({"b": "cab"}),
                "y 3 True",
            ),
            (
                "{{ a }}",
                json!({"a": ["x", true, null, 1.0, {"k": "v'"}]}),
                "['x', True, None, 1.0, {'k': \"v'\"}]",
            ),
            (
                "{% for k, v in a | items %}{{ k }}={{ v | safe }};{% endfor %}{{ a | length }}",
                json!({"a": {"z": "1", "b": "2"}}),
                "z=1;b=2;2",
            ),
            ("{% for k, v in a.items() %}{{ k }}{% endfor %}", json!({"a": {"z": "1", "b": "2"}}), "zb"),
            ("  {% if true %}\na\n  {% endif %}\nb", json!({}), "a\nb"),
            ("{{ a | trim }}|{{ b.c }}|{{ 'x' if a else 'y' }}", json!({"a": " q ", "b": {}}), "q||x"),
            (
                "{% for x in a %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
                json!({"a": [1, 2, 3]}),
                "1",
            ),
        ];
        for (source, context, expected) in cases {
            assert_eq!(render(source, context).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn failures_are_typed() {
        let raised = render("{% if true %}{{ raise_exception('no ' ~ x) }}{% endif %}", json!({"x": "user"}));
        assert_eq!(raised, Err(TokenizerError::TemplateRaised { message: "no user".to_owned() }));
        let in_macro =
            render("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}", json!({}));
        assert_eq!(in_macro, Err(TokenizerError::TemplateRaised { message: "deep".to_owned() }));

        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, json!({})), Err(TokenizerError::TemplateBudget { .. })));
        let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(matches!(render(recursive, json!({})), Err(TokenizerError::TemplateBudget { .. })));
        let doubling = "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}";
        assert!(matches!(render(doubling, json!({})), Err(TokenizerError::TemplateBudget { .. })));
        let long = "{% for i in range(20) %}{{ a }}{% endfor %}";
        assert!(matches!(
            render(long, json!({ "a": "x".repeat(1 << 20) })),
            Err(TokenizerError::TemplateOutputTooLong { .. })
        ));

        assert!(matches!(render("{% if %}", json!({})), Err(TokenizerError::TemplateSyntax { .. })));
        let nested = format!("{{{{ {} }}}}", "(".repeat(50_000));
        assert!(matches!(render(&nested, json!({})), Err(TokenizerError::TemplateSyntax { .. })));
        let unknown = render("{{ 'a' | wordwrap }}", json!({}));
        assert!(
            matches!(&unknown, Err(TokenizerError::TemplateFailed { detail }) if detail.contains("wordwrap")),
            "{unknown:?}"
        );
        assert!(matches!(render("{{ a.b.c }}", json!({})), Err(TokenizerError::TemplateFailed { .. })));
        assert!(matches!(
            render(&"x".repeat(MAX_TEMPLATE_BYTES + 1), json!({})),
            Err(TokenizerError::TemplateTooLong { .. })
        ));
    }
}
