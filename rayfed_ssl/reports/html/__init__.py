"""The report: runs to one HTML file and the PNG and SVG files of its figures."""

from rayfed_ssl.reports.html.report import write_report

__all__ = ["write_report"]
