package main

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

func newInfo(out io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use: "info", Short: "This node's GPUs, what they can, and which figures they give, as JSON", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := load(c)
			if err != nil {
				return err
			}
			lib, err := nvml.Open(cfg.NVMLLibrary)
			if err != nil {
				return err
			}
			defer lib.Close()
			enc := json.NewEncoder(out)
			enc.SetIndent("", "  ")
			return enc.Encode(lib.Devices())
		},
	}
	c.Flags().String("nvml-library", "", "libnvidia-ml.so.1 (default: wherever the loader finds it)")
	return c
}
