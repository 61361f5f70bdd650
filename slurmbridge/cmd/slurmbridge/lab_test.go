package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// installed is a folder with this program and, as slurmbridge-lab, one that prints how it is
// called and ends with status 7. TestMain makes the test's own binary a slurmbridge.
func installed(t *testing.T, lab string) (program string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program = filepath.Join(dir, "sbin", "slurmbridge")
	for _, d := range []string{filepath.Dir(program), filepath.Dir(filepath.Join(dir, lab))} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	body, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, body, 0o755); err != nil {
		t.Fatal(err)
	}
	if lab != "" {
		if err := os.WriteFile(filepath.Join(dir, lab), []byte("#!/bin/sh\necho \"lab: $*\"\nexit 7\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return program
}

func TestLaboratoryIsCalledWithTheWholeCommandLine(t *testing.T) {
	for _, place := range []string{"sbin/slurmbridge-lab", "libexec/slurmbridge/slurmbridge-lab"} {
		program := installed(t, place)
		for _, args := range []string{
			"experiment --quick", "replay --jobs x", "--json train --out y", "-c z profiles plot lammps -o l.svg", "interference score", "interference nope",
			"train --help", "help train", "__complete replay --jo", "__completeNoDesc interference score",
		} {
			out, err := exec.Command(program, strings.Fields(args)...).CombinedOutput()
			var exit *exec.ExitError
			if string(out) != "lab: "+args+"\n" || !errors.As(err, &exit) || exit.ExitCode() != 7 {
				t.Errorf("%s, %s: %q, %v", place, args, out, err)
			}
		}
		if out, err := exec.Command(program, "profiles", "--help").CombinedOutput(); err != nil || !strings.Contains(string(out), "plot ") {
			t.Errorf("profiles --help: %q, %v", out, err)
		}
	}
}

func TestMissingLaboratoryIsNamed(t *testing.T) {
	program := installed(t, "")
	out, err := exec.Command(program, "profiles", "plot", "lammps").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%q, %v", out, err)
	}
	for _, says := range []string{"slurmbridge: profiles plot is a command of slurmbridge-lab", "libexec/slurmbridge/slurmbridge-lab", "the package slurmbridge has it"} {
		if !strings.Contains(string(out), says) {
			t.Errorf("it doesn't say %q: %s", says, out)
		}
	}
}
