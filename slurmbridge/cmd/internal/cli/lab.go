package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// elsewhere is the annotation of a command that the other program has: this one only lists
// it. The manual's pages come from the program that has the command.
const elsewhere = "elsewhere"

// Elsewhere marks a command as the other program's.
func Elsewhere(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{elsewhere: ""}
	return c
}

// Handed reports whether a command is the other program's.
func Handed(c *cobra.Command) bool { _, other := c.Annotations[elsewhere]; return other }

// Lab are the commands that slurmbridge hands to slurmbridge-lab, by their paths, with what
// the list of commands says of them.
var Lab = map[string]string{
	"experiment":    "The thesis's experiments: five workloads, every policy, many seeds",
	"interference":  "How well slowdowns are predicted: score",
	"profiles plot": "One profile as a picture",
	"replay":        "What each policy would have made of a cluster's past",
	"train":         "Train the network that decides, on the simulator",
}

// LabCommand stands for a command of slurmbridge-lab where commands are listed and completed.
func LabCommand(path string) *cobra.Command {
	words := strings.Fields(path)
	return Elsewhere(&cobra.Command{
		Use: words[len(words)-1], Short: Lab[path],
		RunE: func(*cobra.Command, []string) error { return errors.New("slurmbridge-lab was not called") }, // HandOver precedes it
	})
}

// HandOver replaces the process by slurmbridge-lab where the command line is one of its
// commands, calls for help with one, or completes one. It returns nil where it isn't.
func HandOver(root *cobra.Command, args []string) error {
	line := args
	if len(line) > 0 && slices.Contains([]string{"help", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}, line[0]) {
		line = line[1:]
	}
	c, _, err := root.Find(line)
	if err != nil {
		return nil
	}
	if !Handed(c) {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find slurmbridge-lab: %w", err)
	}
	// As the packages install it, or as it was built.
	places := []string{filepath.Join(filepath.Dir(self), "slurmbridge-lab"), filepath.Join(filepath.Dir(self), "../libexec/slurmbridge/slurmbridge-lab")}
	for _, lab := range places {
		err = syscall.Exec(lab, append([]string{"slurmbridge"}, args...), os.Environ()) //nolint:gosec // ours, from where we are
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("run %s: %w", lab, err)
		}
	}
	return fmt.Errorf("%s is a command of slurmbridge-lab, which is neither %s; the package slurmbridge has it, and make build makes it",
		strings.TrimPrefix(c.CommandPath(), "slurmbridge "), strings.Join(places, " nor "))
}
