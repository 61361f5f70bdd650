package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Result is a line of results.jsonl: what one situation of the protocol, or one trial of the law, showed.
type Result struct {
	At    time.Time      `json:"at"`
	Name  string         `json:"name"`
	TookS float64        `json:"took_s"`
	Facts map[string]any `json:"facts,omitempty"`
	Error string         `json:"error,omitempty"` // why it showed no more
}

// results writes each result down as it comes: a machine may be taken away at any moment.
type results struct {
	folder string
	file   *os.File
	log    io.Writer // people read it
	failed []string
}

func newResults(folder string, log io.Writer) (*results, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of results: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(folder, "results.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("write results: %w", err)
	}
	return &results{folder: folder, file: file, log: log}, nil
}

// add writes a result that took since begin.
func (r *results) add(name string, begin time.Time, facts map[string]any, err error) {
	res := Result{At: begin.UTC(), Name: name, TookS: time.Since(begin).Seconds(), Facts: facts}
	if err != nil {
		res.Error = err.Error()
		r.failed = append(r.failed, name+": "+res.Error)
	}
	body, merr := json.Marshal(res)
	if merr == nil {
		_, merr = r.file.Write(append(body, '\n'))
	}
	if merr == nil {
		merr = r.file.Sync()
	}
	fmt.Fprintf(r.log, "gpucheck: %s (%.1f s)%s\n", name, res.TookS, map[bool]string{true: ": " + res.Error}[err != nil])
	if merr != nil {
		fmt.Fprintln(r.log, "gpucheck: write results:", merr)
	}
}

// keep adds a log of MPS's to the folder's, under a heading.
func (r *results) keep(log, heading string) {
	body, err := os.ReadFile(filepath.Clean(log))
	if err != nil {
		return // nothing has logged there
	}
	name := filepath.Join(r.folder, "mps-"+filepath.Base(log))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintf(f, "== %s\n%s", heading, body)
		_ = f.Close()
	}
	if err != nil {
		fmt.Fprintln(r.log, "gpucheck: keep a log:", err)
	}
}
