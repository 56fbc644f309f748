"""Drawings as data, written as SVG; bars, rankings and charts of anything."""
