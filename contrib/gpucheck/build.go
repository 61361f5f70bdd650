package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed kernels
var sources embed.FS

// compile builds the kernels' programs with nvcc into a folder. nvcc's default
// target is the oldest card that it knows; the driver compiles for newer ones when
// a program starts.
func compile(ctx context.Context, nvcc, folder string, kernels []Kernel) error {
	src := filepath.Join(folder, "kernels")
	if err := os.CopyFS(src, sources); err != nil {
		return fmt.Errorf("write kernels: %w", err)
	}
	built := map[string]bool{}
	for _, k := range kernels {
		if built[k.Source] {
			continue
		}
		built[k.Source] = true
		in := filepath.Join(src, "kernels", k.Source+".cu")
		if _, err := output(ctx, "", os.Environ(), nvcc, "-O2", "-o", filepath.Join(folder, k.Source), in); err != nil {
			return fmt.Errorf("nvcc %s.cu: %w", k.Source, err)
		}
	}
	return nil
}
