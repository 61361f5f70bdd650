// Command dashboards writes the dashboards that Grafana imports into a folder.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/slurmbridge/slurmbridge/contrib/grafana"
)

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name a folder")
	}
	boards, err := grafana.Boards()
	if err != nil {
		return err
	}
	for name, text := range boards {
		if err := os.WriteFile(filepath.Join(args[0], name), text, 0o644); err != nil { //nolint:gosec // for everybody
			return err
		}
	}
	return nil
}
