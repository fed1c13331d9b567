//! Figures as a table, in the terminal and in `docs/benchmarks.md`.

use std::fs;

use anyhow::{Context as _, Result};

use crate::figure::Figure;

const DOCUMENT: &str = "docs/benchmarks.md";
const HEAD: [&str; 7] = [
    "what",
    "ours (median)",
    "p95",
    "reference",
    "reference (median)",
    "ratio",
    "bar",
];

/// The figures of one area for a terminal.
pub(crate) fn text(area: &str, figures: &[Figure]) -> String {
    let rows: Vec<Vec<String>> = figures.iter().map(row).collect();
    let head = HEAD.map(str::to_owned).to_vec();
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|column| {
            let cells = std::iter::once(&head)
                .chain(&rows)
                .filter_map(|row| row.get(column));
            cells
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![format!("\n{area}"), line(&head)];
    lines.extend(rows.iter().map(line));
    lines.join("\n")
}

/// Replaces the sections of the measured areas in the document.
pub(crate) fn write_document(sections: &[(&str, Vec<Figure>)]) -> Result<()> {
    let mut document = fs::read_to_string(DOCUMENT).context("run this at the repository's root")?;
    for (area, figures) in sections {
        let (start, end) = (format!("<!-- {area} -->"), format!("<!-- end {area} -->"));
        let from = document
            .find(&start)
            .with_context(|| format!("no `{start}` in {DOCUMENT}"))?;
        let to = document
            .find(&end)
            .with_context(|| format!("no `{end}` in {DOCUMENT}"))?;
        let section = format!("{start}\n{}\n{}\n", machine()?, markdown(figures));
        document.replace_range(from..to, &section);
    }
    fs::write(DOCUMENT, document)?;
    Ok(())
}

fn markdown(figures: &[Figure]) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let mut lines = vec![
        line(&HEAD.map(str::to_owned)),
        line(&HEAD.map(|_| "---".to_owned())),
    ];
    lines.extend(figures.iter().map(|figure| line(&row(figure))));
    lines.join("\n")
}

fn row(figure: &Figure) -> Vec<String> {
    let (name, reference) = match &figure.reference {
        Some((name, samples)) => (name.clone(), samples.show(samples.at(figure.compared()))),
        None => Default::default(),
    };
    let ratio = figure.ratio().map(|ratio| match ratio {
        ratio if ratio >= 10.0 => format!("{ratio:.0}x"),
        ratio => format!("{ratio:.2}x"),
    });
    let bar = if figure.holds() {
        figure.bar.to_string()
    } else {
        format!("MISSED: {}", figure.bar)
    };
    vec![
        figure.what.clone(),
        figure.ours.show(figure.ours.median()),
        figure.slow_end(),
        name,
        reference,
        ratio.unwrap_or_default(),
        bar,
    ]
}

/// What it ran on, because figures mean nothing without it.
fn machine() -> Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let cores = std::thread::available_parallelism()?;
    let model = model.unwrap_or("unknown processor");
    Ok(format!(
        "\nMeasured on {cores} cores of {model}, Linux {}.\n",
        kernel.trim()
    ))
}
