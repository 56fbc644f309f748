"""Drawings as data, written as SVG or painted on Axes; bars, rankings and charts of anything."""
