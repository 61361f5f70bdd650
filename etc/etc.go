// Package etc holds the controller's settings file, which documents every setting and its default.
package etc

import _ "embed" // the file below

// Settings is slurmbridge.yaml: a comment and the default for each setting.
//
//go:embed slurmbridge.yaml
var Settings []byte
