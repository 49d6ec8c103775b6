// Package image is a host's store of OCI images: it pulls them from registries,
// imports them from archives, builds the default one, converts their layers to
// the files machines read, and exports them again.
//
// A store is one directory that belongs to one process:
//
//	lock                     held (flock) while the store is open
//	blobs/sha256/<hex>       manifests, configurations and compressed layers, as in an OCI layout
//	partial/<hex>            the beginning of a blob whose download was interrupted
//	layers/<key>.img         a converted layer
//	layers/<key>.json        its size and checksum; written last, without it the layer does not exist
//	images/<hex>.json        an image; written last, without it the image does not exist
//	tmp/                     emptied when the store is opened
//
// Every file is written under another name, synced and renamed, so a crash at
// any moment leaves whole files only, and files that no image needs are garbage
// that goes away by itself.
//
// A converted layer is keyed by its diffID, so that all images share it, or by
// its chainID where the conversion had to look at the layers below (OCI image
// specification, "Layer ChainID").
//
// The compressed layers are kept beside the converted ones, although machines
// never read them: they are what makes an image exportable bit by bit, lets a
// damaged layer be converted again without the network, and lets a new converter
// convert everything anew. They cost about a third on top (Debian with Python
// and Node.js: 135 MB beside 377 MB).
package image
