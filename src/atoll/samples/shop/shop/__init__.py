"""Orders, prices and receipts."""
