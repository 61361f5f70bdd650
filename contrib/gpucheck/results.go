package main

import (
	"encoding/json"
	"errors"
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
	log    io.Writer // people read it
	failed []string
}

// add writes a result that took since begin.
func (r *results) add(name string, begin time.Time, facts map[string]any, err error) {
	res := Result{At: begin.UTC(), Name: name, TookS: time.Since(begin).Seconds(), Facts: facts}
	if err != nil {
		res.Error = err.Error()
		r.failed = append(r.failed, name+": "+res.Error)
	}
	body, err := json.Marshal(res)
	if err == nil {
		err = r.write("results.jsonl", append(body, '\n'))
	}
	about := fmt.Sprintf("%s (%.1f s)", name, res.TookS)
	if res.Error != "" {
		about += ": " + res.Error
	}
	fmt.Fprintln(r.log, "gpucheck:", about)
	if err != nil {
		fmt.Fprintln(r.log, "gpucheck: write results:", err)
	}
}

// write adds to a file of the folder's, on the disk.
func (r *results) write(name string, text []byte) error {
	f, err := os.OpenFile(filepath.Join(r.folder, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// keep adds a log of MPS's to the folder's, under a heading.
func (r *results) keep(log, heading string) {
	body, err := os.ReadFile(filepath.Clean(log))
	if err != nil {
		return // nothing has logged there
	}
	if err := r.write("mps-"+filepath.Base(log), fmt.Appendf(nil, "== %s\n%s", heading, body)); err != nil {
		fmt.Fprintln(r.log, "gpucheck: keep a log:", err)
	}
}
