package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/google/renameio/v2"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

// write writes profiles.csv, pairs.csv, report.json and report.txt into a folder,
// and reads the first two as `slurmbridge replay` and `interference score` do.
func (r *Report) write(folder string) error {
	body, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	profiles, pairs := filepath.Join(folder, "profiles.csv"), filepath.Join(folder, "pairs.csv")
	for path, text := range map[string][]byte{
		profiles: r.profilesCSV(), pairs: r.pairsCSV(),
		filepath.Join(folder, "report.json"): append(body, '\n'), filepath.Join(folder, "report.txt"): []byte(r.text()),
	} {
		if err := renameio.WriteFile(path, text, 0o644); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	list, err := trace.ReadProfilesFile(profiles)
	if err != nil && len(r.Kernels) > 0 {
		return fmt.Errorf("read back: %w", err)
	}
	var known []string
	for _, p := range list {
		known = append(known, p.App)
	}
	if _, err := trace.ReadPairsFile(pairs, known...); err != nil && !errors.Is(err, table.ErrNoRows) {
		return fmt.Errorf("read back: %w", err)
	}
	return nil
}

func inCSV(head string, rows [][]string) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	w := csv.NewWriter(&b)
	_ = w.WriteAll(rows) // a buffer takes all
	return b.Bytes()
}

// origin is the files' first line.
func (r *Report) origin() string {
	what := fmt.Sprintf("# contrib/gpucheck, %s: %q, driver %q", r.Date, r.Card.Model, r.Card.Driver)
	if r.Simulated {
		what += "; simulated, not a measurement"
	}
	return what + "\n"
}

// profilesCSV is what NVML measured of each kernel alone.
func (r *Report) profilesCSV() []byte {
	rows := [][]string{{"app", "duration_s", "gpu_util", "mem_mib", "sm_util", "pcie_mbps", "step_ms"}}
	num := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	for _, k := range r.Kernels {
		u := k.Measured
		rows = append(rows, []string{
			k.Name, num(k.DurationS), num(100 * u.GPU), num(u.MemMiB), num(100 * u.Core), num(u.PCIeMBps),
			strconv.FormatFloat(1000*k.StepS, 'g', 6, 64),
		})
	}
	return inCSV(r.origin(), rows)
}

// pairsCSV is what was measured of each pair, each way.
func (r *Report) pairsCSV() []byte {
	rows := [][]string{{"victim", "aggressor", "slowdown"}}
	for _, p := range r.pairs() {
		rows = append(rows, []string{p.Victim, p.Aggressor, strconv.FormatFloat(p.Slowdown, 'f', 4, 64)})
	}
	return inCSV(r.origin(), rows)
}
