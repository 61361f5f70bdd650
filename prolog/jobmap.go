package prolog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
)

// writeJobMap tells dcgm-exporter (--hpc-job-mapping-dir) which jobs are on a GPU:
// a file named by DCGM's number of the GPU, a job's number a line; none where no
// job is. The caller holds the GPU's lock.
func writeJobMap(folder string, gpu int, jobs []*Job) error {
	path := filepath.Join(folder, strconv.Itoa(gpu))
	if len(jobs) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("job map: %w", err)
		}
		return nil
	}
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
