//! Plain text tables: aligned columns, two spaces between them.

/// Rows below a head. Every row must have as many cells as the head.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(head: [&str; N]) -> Table {
        Table { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.rows[0].len(), "a row has one cell per column");
        self.rows.push(cells.to_vec());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["NAME", "QUEUES"]);
        assert!(table.is_empty());
        table.row(["a-long-name".to_owned(), "4".to_owned()]);
        table.row(["b".to_owned(), "16".to_owned()]);
        assert_eq!(table.to_string(), "NAME         QUEUES\na-long-name  4\nb            16\n");
    }
}
