"""The best points, exports, reports and figures of an experiment."""
