//! `evaluate`: questions with known answers, and how many were answered right.

use std::collections::BTreeMap;

use serde::Serialize;
use signbit_engine::chat::ChatRequest;
use signbit_engine::engine::Engine;
use signbit_engine::model::ModelOptions;

use super::generate::reply;
use super::open_device;
use crate::args::EvaluateArgs;
use crate::error::CliError;
use crate::files::{ModelFiles, Question, read_questions};
use crate::output::{print, print_json, print_line, table};

#[derive(Default, Serialize)]
struct Count {
    right: usize,
    asked: usize,
}

/// An answer that is not the expected one, or not the reference's.
#[derive(Serialize)]
struct Difference<'a> {
    kind: &'a str,
    question: String,
    expected: &'a str,
    answer: String,
    is_right: bool,
    /// Whether the ids are the reference's; `None` if the file has none.
    is_as_reference: Option<bool>,
    smallest_gap: Option<f32>,
}

#[derive(Default, Serialize)]
struct Report<'a> {
    all: Count,
    kinds: BTreeMap<&'a str, Count>,
    /// Answers with the very ids of the reference, of those for which the file has ids.
    as_reference: Count,
    differences: Vec<Difference<'a>>,
    answers: Vec<String>,
}

/// Asks every question greedily in a session of its own.
pub fn run(args: &EvaluateArgs) -> Result<(), CliError> {
    let questions = read_questions(&args.questions)?;
    if questions.is_empty() {
        return Err(CliError::Usage(format!("{} holds no questions", args.questions.display())));
    }
    let mut files = ModelFiles::open_or_built_in(args.model.as_deref())?.expecting(&args.check.sha256)?;
    let mut engine = Engine::new(open_device(args.backend)?);
    files.load(&mut engine, ModelOptions::default())?;
    let mut report = Report::default();
    for question in &questions {
        ask(&mut engine, question, args.max_tokens, &mut report)?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        print_report(&report)?;
    }
    let Count { right, asked } = report.all;
    if (right as f64) < args.at_least * asked as f64 {
        return Err(CliError::AnswersWrong { wrong: asked - right, asked });
    }
    Ok(())
}

fn ask<'a>(
    engine: &mut Engine,
    question: &'a Question,
    max_tokens: u32,
    report: &mut Report<'a>,
) -> Result<(), CliError> {
    engine.reset()?;
    let request = ChatRequest {
        messages: Some(question.messages.clone()),
        enable_thinking: Some(question.thinking),
        max_tokens: Some(max_tokens),
        temperature: Some(0.0),
        ..ChatRequest::default()
    };
    let reply = reply(engine, request, |_, _| Ok(()))?;
    let answer = reply.content.trim().to_owned();
    let is_right = answer == question.expected;
    for count in [&mut report.all, report.kinds.entry(&question.kind).or_default()] {
        count.asked += 1;
        count.right += usize::from(is_right);
    }
    let is_as_reference = question.answer_ids.as_ref().map(|ids| *ids == reply.ids);
    if let Some(is_same) = is_as_reference {
        report.as_reference.asked += 1;
        report.as_reference.right += usize::from(is_same);
    }
    if !is_right || is_as_reference == Some(false) {
        report.differences.push(Difference {
            kind: &question.kind,
            question: question.messages.last().map(signbit_tokenizer::Message::text).unwrap_or_default(),
            expected: &question.expected,
            answer: answer.clone(),
            is_right,
            is_as_reference,
            smallest_gap: question.smallest_gap,
        });
    }
    report.answers.push(answer);
    Ok(())
}

fn print_report(report: &Report<'_>) -> Result<(), CliError> {
    let row = |name: &str, count: &Count| {
        let percent = 100.0 * count.right as f64 / count.asked.max(1) as f64;
        vec![name.to_owned(), count.right.to_string(), count.asked.to_string(), format!("{percent:.1}")]
    };
    let mut rows: Vec<Vec<String>> = report.kinds.iter().map(|(kind, count)| row(kind, count)).collect();
    rows.push(row("all", &report.all));
    if report.as_reference.asked > 0 {
        rows.push(row("same ids as the reference", &report.as_reference));
    }
    print(&table(&["kind", "right", "of", "%"], &rows, 1))?;
    for difference in &report.differences {
        let Difference { kind, question, expected, answer, is_as_reference, smallest_gap, .. } = difference;
        let reference = match (is_as_reference, smallest_gap) {
            (Some(false), Some(gap)) => format!("; not as the reference, whose closest choice was by {gap}"),
            (Some(false), None) => "; not as the reference".to_owned(),
            _ => String::new(),
        };
        print_line(&format!("{kind}: {question:?} -> {answer:?}, expected {expected:?}{reference}"))?;
    }
    Ok(())
}
