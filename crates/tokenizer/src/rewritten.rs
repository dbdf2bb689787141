//! A template, written down again so that whatever walks through a value pays first.
//!
//! The engine counts what a template makes, and most of what it visits, but not how deep it goes: `~`,
//! comparisons, `in`, sorting, keys of maps and some filters compare or write a list with all that is
//! in it. A list of two places that hold the same list, sixty times over, is 2^60 elements to them; a
//! list that is in a namespace that is in the list never ends; and what is constant is folded so before
//! there is any fuel. So each value that is about to be walked, and each list that is made, passes a
//! filter of [`crate::paid`]. Everything else stays as it stood, on the line where it stood.

use std::fmt::{self, Write};

use minijinja::machinery::ast::{
    BinOp, BinOpKind, CallArg, CompareOpKind, Expr, Macro, Stmt, UnaryOpKind,
};
use minijinja::machinery::{Span, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::paid::{KEPT, MADE, READ, WALKED, WHOLE};

/// Filters and tests that look at a value and at most at its items, none of them deeper.
const SHALLOW: [&str; 36] = [
    "abs",
    "boolean",
    "capitalize",
    "count",
    "d",
    "default",
    "defined",
    "escaped",
    "even",
    "false",
    "first",
    "float",
    "int",
    "integer",
    "items",
    "iterable",
    "last",
    "length",
    "list",
    "lower",
    "mapping",
    "none",
    "number",
    "odd",
    "reverse",
    "round",
    "safe",
    "sequence",
    "string_",
    "test",
    "title",
    "trim",
    "true",
    "undefined",
    "upper",
    "filter",
];

/// Tests among them that look at every character of a text.
const READING: [&str; 2] = ["lower", "upper"];
/// Filters whose list is made only when it is looked at.
const LAZY: [&str; 9] = [
    "batch",
    "chain",
    "map",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "slice",
    "zip",
];

/// The same template in the engine's default syntax.
///
/// # Errors
/// It is none, or has something that no chat template has.
pub(crate) fn rewritten(source: &str, name: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    let template = parse(source, name, syntax)?;
    let mut page = Page {
        text: String::with_capacity(2 * source.len()),
        line: 1,
        depth: 0,
    };
    page.statement(&template)?;
    Ok(page.text)
}

struct Page {
    text: String,
    line: u16,
    /// Expressions in each other that are being written.
    depth: usize,
}

/// Expressions in each other, at most: a sum of so many terms, say. The engine looks at each with all that
/// is in it, again and again.
const DEPTH_MAX: usize = 1000;

/// How tightly an expression holds together; what holds less than its place asks for is bracketed.
mod tight {
    pub(super) const CHOICE: u8 = 0;
    pub(super) const OR: u8 = 1;
    pub(super) const AND: u8 = 2;
    pub(super) const NOT: u8 = 3;
    pub(super) const COMPARE: u8 = 4;
    pub(super) const SUM: u8 = 5;
    pub(super) const CONCAT: u8 = 6;
    pub(super) const PRODUCT: u8 = 7;
    pub(super) const POWER: u8 = 8;
    pub(super) const FILTERED: u8 = 9;
    pub(super) const SIGNED: u8 = 10;
    pub(super) const PRIMARY: u8 = 11;
}

type Written = Result<(), Error>;

impl Page {
    /// Statements.
    fn statement(&mut self, statement: &Stmt<'_>) -> Written {
        match statement {
            Stmt::Template(it) => self.all(&it.children),
            Stmt::EmitRaw(it) => {
                self.begin("{{", it.span());
                self.quoted(it.raw);
                self.put(" }}");
                Ok(())
            }
            Stmt::EmitExpr(it) => {
                self.begin("{{", it.span());
                self.walked(&it.expr, tight::CHOICE)?;
                self.put(" }}");
                Ok(())
            }
            Stmt::ForLoop(it) => {
                self.begin("{% for", it.span());
                self.target(&it.target)?;
                self.put(" in ");
                self.expression(&it.iter, tight::OR)?;
                if let Some(filter) = &it.filter_expr {
                    self.put(" if ");
                    self.expression(filter, tight::OR)?;
                }
                self.put(if it.recursive { " recursive %}" } else { " %}" });
                self.all(&it.body)?;
                if !it.else_body.is_empty() {
                    self.put("{% else %}");
                    self.all(&it.else_body)?;
                }
                self.put("{% endfor %}");
                Ok(())
            }
            Stmt::IfCond(it) => {
                self.begin("{% if", it.span());
                self.expression(&it.expr, tight::CHOICE)?;
                self.put(" %}");
                self.all(&it.true_body)?;
                if !it.false_body.is_empty() {
                    self.put("{% else %}");
                    self.all(&it.false_body)?;
                }
                self.put("{% endif %}");
                Ok(())
            }
            Stmt::WithBlock(it) => {
                self.begin("{% with", it.span());
                for (at, (target, value)) in it.assignments.iter().enumerate() {
                    self.put(if at > 0 { ", " } else { "" });
                    self.target(target)?;
                    self.put("=");
                    self.expression(value, tight::CHOICE)?;
                }
                self.put(" %}");
                self.all(&it.body)?;
                self.put("{% endwith %}");
                Ok(())
            }
            Stmt::Set(it) => {
                self.begin("{% set", it.span());
                self.target(&it.target)?;
                self.put(" = ");
                match is_name(&it.target) {
                    true => self.expression(&it.expr, tight::CHOICE)?,
                    false => self.filtered(&it.expr, KEPT)?,
                }
                self.put(" %}");
                Ok(())
            }
            Stmt::SetBlock(it) => {
                self.begin("{% set", it.span());
                self.target(&it.target)?;
                if let Some(filter) = &it.filter {
                    self.put(" | ");
                    self.expression(filter, tight::CHOICE)?;
                }
                self.put(" %}");
                self.all(&it.body)?;
                self.put("{% endset %}");
                Ok(())
            }
            Stmt::AutoEscape(it) => {
                self.begin("{% autoescape", it.span());
                self.expression(&it.enabled, tight::CHOICE)?;
                self.put(" %}");
                self.all(&it.body)?;
                self.put("{% endautoescape %}");
                Ok(())
            }
            Stmt::FilterBlock(it) => {
                self.begin("{% filter", it.span());
                self.expression(&it.filter, tight::CHOICE)?;
                self.put(" %}");
                self.all(&it.body)?;
                self.put("{% endfilter %}");
                Ok(())
            }
            Stmt::Macro(it) => {
                self.begin("{% macro", it.span());
                self.put(it.name);
                self.parameters(it)?;
                self.put(" %}");
                self.all(&it.body)?;
                self.put("{% endmacro %}");
                Ok(())
            }
            Stmt::CallBlock(it) => {
                self.begin("{% call", it.span());
                self.parameters(&it.macro_decl)?;
                self.put(" ");
                self.call(&it.call.expr, &it.call.args)?;
                self.put(" %}");
                self.all(&it.macro_decl.body)?;
                self.put("{% endcall %}");
                Ok(())
            }
            Stmt::Do(it) => {
                self.begin("{% do", it.span());
                self.call(&it.call.expr, &it.call.args)?;
                self.put(" %}");
                Ok(())
            }
            Stmt::Continue(it) => {
                self.begin("{% continue", it.span());
                self.put(" %}");
                Ok(())
            }
            Stmt::Break(it) => {
                self.begin("{% break", it.span());
                self.put(" %}");
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::InvalidOperation,
                "a chat template is one file: it includes, imports and extends nothing",
            )),
        }
    }

    fn all(&mut self, statements: &[Stmt<'_>]) -> Written {
        statements.iter().try_for_each(|it| self.statement(it))
    }

    fn parameters(&mut self, of: &Macro<'_>) -> Written {
        self.put("(");
        let plain = of.args.len() - of.defaults.len();
        for (at, name) in of.args.iter().enumerate() {
            self.put(if at > 0 { ", " } else { "" });
            self.target(name)?;
            if let Some(default) = at.checked_sub(plain).map(|at| &of.defaults[at]) {
                self.put("=");
                self.expression(default, tight::CHOICE)?;
            }
        }
        self.put(")");
        Ok(())
    }

    /// What is assigned to.
    fn target(&mut self, target: &Expr<'_>) -> Written {
        match target {
            Expr::List(it) => {
                self.put("(");
                for item in &it.items {
                    self.target(item)?;
                    self.put(", ");
                }
                self.put(")");
                Ok(())
            }
            Expr::GetAttr(it) => {
                self.target(&it.expr)?;
                self.put(".");
                self.put(it.name);
                Ok(())
            }
            other => self.expression(other, tight::PRIMARY),
        }
    }

    /// Expressions; one that holds together less than `tight` is bracketed.
    fn expression(&mut self, it: &Expr<'_>, tight: u8) -> Written {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let problem = format!("an expression has more than {DEPTH_MAX} parts in each other");
            return Err(Error::new(ErrorKind::SyntaxError, problem));
        }
        let bracketed = tightness(it) < tight;
        self.put(if bracketed { "(" } else { "" });
        self.bare(it)?;
        self.depth -= 1;
        self.put(if bracketed { ")" } else { "" });
        Ok(())
    }

    fn bare(&mut self, it: &Expr<'_>) -> Written {
        match it {
            Expr::Var(it) => self.put(it.id),
            Expr::Const(it) => self.constant(&it.value)?,
            Expr::Slice(it) => {
                self.read(&it.expr)?;
                self.put("[");
                for (at, bound) in [&it.start, &it.stop, &it.step].into_iter().enumerate() {
                    self.put(if at > 0 { ":" } else { "" });
                    if let Some(bound) = bound {
                        self.expression(bound, tight::CHOICE)?;
                    }
                }
                self.put("]|");
                self.put(WHOLE);
            }
            Expr::UnaryOp(it) => match it.op {
                UnaryOpKind::Not => {
                    self.put("not ");
                    self.expression(&it.expr, tight::NOT)?;
                }
                UnaryOpKind::Neg => {
                    self.put("-");
                    self.expression(&it.expr, tight::PRIMARY)?;
                }
            },
            Expr::BinOp(it) => {
                let (word, tight, walks) = operator(it.op);
                let makes = makes(it);
                self.put(if makes { "(" } else { "" });
                // What stands on the left of the same operator is one text or number already.
                let same = matches!(&it.left, Expr::BinOp(left) if operator(left.op).0 == word);
                let folded =
                    matches!(it.op, BinOpKind::Concat) && matches!(&it.left, Expr::Const(_));
                match walks && !same {
                    // The engine would put constants together before there is any fuel.
                    _ if folded => self.read(&it.left)?,
                    true => self.walked(&it.left, tight + u8::from(tight == tight::COMPARE))?,
                    false => {
                        self.expression(&it.left, tight + u8::from(tight == tight::COMPARE))?
                    }
                }
                self.put(word);
                match walks {
                    true => self.walked(&it.right, tight + 1)?,
                    false => self.expression(&it.right, tight + 1)?,
                }
                if makes {
                    self.put(")|");
                    self.put(WHOLE);
                }
            }
            Expr::Compare(it) => {
                self.walked(&it.expr, tight::SUM)?;
                for then in &it.ops {
                    self.put(comparison(then.op));
                    self.walked(&then.expr, tight::SUM)?;
                }
            }
            Expr::IfExpr(it) => {
                self.expression(&it.true_expr, tight::OR)?;
                self.put(" if ");
                self.expression(&it.test_expr, tight::OR)?;
                if let Some(other) = &it.false_expr {
                    self.put(" else ");
                    self.expression(other, tight::CHOICE)?;
                }
            }
            Expr::Filter(it) => {
                let shallow = SHALLOW.contains(&it.name);
                match &it.expr {
                    Some(of) if shallow => self.expression(of, tight::FILTERED)?,
                    Some(of) => self.walked(of, tight::FILTERED)?,
                    None => {}
                }
                self.put(if it.expr.is_some() { "|" } else { "" });
                self.put(it.name);
                self.arguments(&it.args)?;
                if LAZY.contains(&it.name) {
                    self.put("|");
                    self.put(WHOLE);
                }
            }
            Expr::Test(it) => {
                match SHALLOW.contains(&it.name) && !READING.contains(&it.name) {
                    true => self.expression(&it.expr, tight::FILTERED)?,
                    false => self.walked(&it.expr, tight::FILTERED)?,
                }
                self.put(" is ");
                self.put(it.name);
                self.arguments(&it.args)?;
            }
            Expr::GetAttr(it) => {
                self.expression(&it.expr, tight::PRIMARY)?;
                self.put(".");
                self.put(it.name);
            }
            Expr::GetItem(it) => {
                match &it.subscript_expr {
                    // Of a map, then.
                    Expr::Const(key) if key.value.as_str().is_some() => {
                        self.expression(&it.expr, tight::PRIMARY)?;
                    }
                    _ => self.read(&it.expr)?,
                }
                self.put("[");
                self.walked(&it.subscript_expr, tight::CHOICE)?;
                self.put("]");
            }
            Expr::Call(it) => self.call(&it.expr, &it.args)?,
            Expr::List(it) => self.made(("[", "]"), &it.items)?,
            Expr::Tuple(it) => self.made(("(", ")"), &it.items)?,
            Expr::Map(it) => {
                self.put("{");
                for (key, value) in it.keys.iter().zip(&it.values) {
                    self.walked(key, tight::CHOICE)?;
                    self.put(": ");
                    self.expression(value, tight::CHOICE)?;
                    self.put(", ");
                }
                self.put("}|");
                self.put(MADE);
            }
        }
        Ok(())
    }

    fn made(&mut self, (open, close): (&str, &str), items: &[Expr<'_>]) -> Written {
        self.put(open);
        for item in items {
            self.expression(item, tight::CHOICE)?;
            self.put(", ");
        }
        self.put(close);
        self.put("|");
        self.put(MADE);
        Ok(())
    }

    /// A method may compare what it is called on with what it is given.
    fn call(&mut self, callee: &Expr<'_>, arguments: &[CallArg<'_>]) -> Written {
        match callee {
            Expr::GetAttr(it) if !is_name(&it.expr) => {
                self.put("(");
                self.walked(&it.expr, tight::FILTERED)?;
                self.put(").");
                self.put(it.name);
            }
            other => self.expression(other, tight::PRIMARY)?,
        }
        self.arguments(arguments)
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) -> Written {
        self.put("(");
        for (at, argument) in arguments.iter().enumerate() {
            self.put(if at > 0 { ", " } else { "" });
            match argument {
                CallArg::Pos(value) => self.walked(value, tight::CHOICE)?,
                CallArg::Kwarg(name, value) => {
                    self.put(name);
                    self.put("=");
                    self.walked(value, tight::CHOICE)?;
                }
                CallArg::PosSplat(value) => {
                    self.put("*");
                    self.walked(value, tight::CHOICE)?;
                }
                CallArg::KwargSplat(value) => {
                    self.put("**");
                    self.walked(value, tight::CHOICE)?;
                }
            }
        }
        self.put(")");
        Ok(())
    }

    /// A value that is about to be walked; what cannot be a list stays as it is.
    fn walked(&mut self, it: &Expr<'_>, tight: u8) -> Written {
        if is_flat(it) {
            return self.expression(it, tight);
        }
        let bracketed = tight > tight::FILTERED;
        self.put(if bracketed { "(" } else { "" });
        self.filtered(it, WALKED)?;
        self.put(if bracketed { ")" } else { "" });
        Ok(())
    }

    /// A value of which places are asked for.
    fn read(&mut self, it: &Expr<'_>) -> Written {
        self.put("(");
        self.filtered(it, READ)?;
        self.put(")");
        Ok(())
    }

    fn filtered(&mut self, it: &Expr<'_>, filter: &str) -> Written {
        self.expression(it, tight::FILTERED)?;
        self.put("|");
        self.put(filter);
        Ok(())
    }

    fn constant(&mut self, value: &Value) -> Written {
        match (value.kind(), value.as_str()) {
            (_, Some(text)) => self.quoted(text),
            (ValueKind::None | ValueKind::Bool, _) => self.put(&value.to_string()),
            (ValueKind::Number, _) if !value.to_string().contains(['n', 'N']) => {
                self.put(&value.to_string());
            }
            _ => {
                let problem = format!("a constant that is no number: {value}");
                return Err(Error::new(ErrorKind::SyntaxError, problem));
            }
        }
        Ok(())
    }

    fn quoted(&mut self, text: &str) {
        self.put("\"");
        for c in text.chars() {
            match c {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                '\n' => self.put("\\n"),
                '\r' => self.put("\\r"),
                c => self.text.push(c),
            }
        }
        self.put("\"");
    }

    /// The beginning of a tag, on the line where it stood: errors name lines.
    fn begin(&mut self, tag: &str, at: Span) {
        self.put(tag);
        while self.line < at.start_line {
            self.text.push('\n');
            self.line += 1;
        }
        self.put(" ");
    }

    fn put(&mut self, text: &str) {
        // A String takes all.
        let _: fmt::Result = self.text.write_str(text);
    }
}

fn is_name(it: &Expr<'_>) -> bool {
    matches!(it, Expr::Var(_))
}

/// Whether this is no list and no map, whatever is in its variables.
fn is_flat(it: &Expr<'_>) -> bool {
    match it {
        Expr::Const(_) | Expr::Compare(_) | Expr::Test(_) => true,
        Expr::UnaryOp(_) => true,
        Expr::BinOp(it) => {
            use BinOpKind::{Add, Mul, ScAnd, ScOr};
            !matches!(it.op, Add | Mul | ScAnd | ScOr)
        }
        _ => false,
    }
}

/// How it is written, how tightly it holds together, and whether it walks.
fn operator(of: BinOpKind) -> (&'static str, u8, bool) {
    match of {
        BinOpKind::Eq => (" == ", tight::COMPARE, true),
        BinOpKind::Ne => (" != ", tight::COMPARE, true),
        BinOpKind::Lt => (" < ", tight::COMPARE, true),
        BinOpKind::Lte => (" <= ", tight::COMPARE, true),
        BinOpKind::Gt => (" > ", tight::COMPARE, true),
        BinOpKind::Gte => (" >= ", tight::COMPARE, true),
        BinOpKind::In => (" in ", tight::COMPARE, true),
        BinOpKind::Concat => (" ~ ", tight::CONCAT, true),
        BinOpKind::ScAnd => (" and ", tight::AND, false),
        BinOpKind::ScOr => (" or ", tight::OR, false),
        BinOpKind::Add => (" + ", tight::SUM, false),
        BinOpKind::Sub => (" - ", tight::SUM, false),
        BinOpKind::Mul => (" * ", tight::PRODUCT, false),
        BinOpKind::Div => (" / ", tight::PRODUCT, false),
        BinOpKind::FloorDiv => (" // ", tight::PRODUCT, false),
        BinOpKind::Rem => (" % ", tight::PRODUCT, false),
        BinOpKind::Pow => (" ** ", tight::POWER, false),
    }
}

/// Whether it may make a list of others: what has a text in it cannot, nor a sum with a number.
fn makes(it: &BinOp<'_>) -> bool {
    let number = |it: &Expr<'_>| matches!(it, Expr::Const(_));
    match it.op {
        BinOpKind::Add if number(&it.left) || number(&it.right) => false,
        BinOpKind::Add | BinOpKind::Mul => {
            !is_text(&it.left, TERMS_MAX) && !is_text(&it.right, TERMS_MAX)
        }
        _ => false,
    }
}

/// So many terms of a sum are looked at for a text.
const TERMS_MAX: usize = 32;

/// Whether this is a text, whatever is in its variables, or fails; as far as its last terms say.
fn is_text(it: &Expr<'_>, terms: usize) -> bool {
    match it {
        Expr::Const(it) => it.value.as_str().is_some(),
        Expr::BinOp(it) => match it.op {
            BinOpKind::Concat => true,
            BinOpKind::Add | BinOpKind::Mul if terms > 0 => {
                is_text(&it.right, 0) || is_text(&it.left, terms - 1)
            }
            _ => false,
        },
        Expr::Filter(it) => ["join", "string", "tojson", "trim"].contains(&it.name),
        _ => false,
    }
}

fn comparison(of: CompareOpKind) -> &'static str {
    match of {
        CompareOpKind::Eq => " == ",
        CompareOpKind::Ne => " != ",
        CompareOpKind::Lt => " < ",
        CompareOpKind::Lte => " <= ",
        CompareOpKind::Gt => " > ",
        CompareOpKind::Gte => " >= ",
        CompareOpKind::In => " in ",
        CompareOpKind::NotIn => " not in ",
    }
}

fn tightness(of: &Expr<'_>) -> u8 {
    match of {
        Expr::IfExpr(_) => tight::CHOICE,
        // With the filter that makes them whole.
        Expr::BinOp(it) if makes(it) => tight::FILTERED,
        Expr::Slice(_) => tight::FILTERED,
        Expr::BinOp(it) => operator(it.op).1,
        Expr::UnaryOp(it) => match it.op {
            UnaryOpKind::Not => tight::NOT,
            UnaryOpKind::Neg => tight::SIGNED,
        },
        Expr::Compare(_) => tight::COMPARE,
        // With the filter that measures them.
        Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => tight::FILTERED,
        Expr::Filter(_) | Expr::Test(_) => tight::FILTERED,
        _ => tight::PRIMARY,
    }
}
