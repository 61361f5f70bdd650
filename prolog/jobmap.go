package prolog

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
)

// writeJobMap shows dcgm-exporter (--hpc-job-mapping-dir) which jobs are on a GPU:
// a file named by DCGM's number of the GPU, a job's number a line. Where no job is it
// is empty, and never removed: a file that goes away between its look at the folder and
// its reading costs the exporter the whole scrape. The caller holds the GPU's lock.
func writeJobMap(folder string, gpu int, jobs []*Job) error {
	path := filepath.Join(folder, strconv.Itoa(gpu))
	var b strings.Builder
	for _, j := range jobs {
		fmt.Fprintln(&b, j.JobID)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("job map: %w", err)
	}
	if err := renameio.WriteFile(path, []byte(b.String()), 0o644, renameio.WithStaticPermissions(0o644)); err != nil {
		return fmt.Errorf("job map: %w", err)
	}
	return nil
}
