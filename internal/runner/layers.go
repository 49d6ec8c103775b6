package runner

import (
	"context"

	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/image"
)

// LayerConverter makes EROFS files of the image store's layers. It joins the
// packages image and disk, which do not know each other.
type LayerConverter struct{}

var _ image.Converter = LayerConverter{}

// Format names what ConvertLayer writes; raise it when its output changes.
func (LayerConverter) Format() string { return "erofs-1" }

// ConvertLayer writes the EROFS file of one layer.
func (LayerConverter) ConvertLayer(ctx context.Context, l image.Conversion) (dependsOnLower bool, err error) {
	_, stats, err := disk.BuildLayer(ctx, l.Tar, l.Size, &disk.Tree{Layers: l.Lower}, l.Dst, disk.Limits{})
	return stats.DependsOnLower, err
}
